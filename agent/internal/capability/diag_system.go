package capability

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/process"

	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
)

const (
	// diagTime bounds the whole description; what isn't there by then is missing.
	diagTime = 4 * time.Second
	topCount = 10
	// diagMost bounds each list, so that a host with thousands of mounts still answers.
	diagMost = 200
)

// part reads one part of the description. It returns what fills the part in, because a
// part that's late (a disk that doesn't answer) may not touch the answer any more.
type part struct {
	name string
	read func(context.Context) (func(*capability.DiagSystemOut), error)
}

// diagSystem describes the host, each part on its own.
func (h *Host) diagSystem(ctx context.Context, _ *run.Call, _ capability.DiagSystemIn) (capability.DiagSystemOut, error) {
	out := capability.DiagSystemOut{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Time: time.Now().Format(time.RFC3339),
		Load: []float64{}, Disks: []capability.DiagDisk{}, Network: []capability.DiagAddress{}, Top: []capability.DiagProcess{},
		Users: []string{}, Missing: []string{}, AgentVersion: h.Version, AgentUser: h.RunAs}
	if name, err := os.Hostname(); err == nil {
		out.Hostname = tidy(name)
	}
	parts := []part{{"system", readSystem}, {"cpu model", readModel}, {"load", readLoad}, {"cpu use", readCPU}, {"memory", readMemory},
		{"swap", readSwap}, {"disks", readDisks}, {"network", readNetwork}, {"processes", readProcesses}, {"logged-in users", readUsers}}
	limited, cancel := context.WithTimeout(ctx, diagTime)
	defer cancel()
	type result struct {
		part int
		fill func(*capability.DiagSystemOut)
		err  error
	}
	results := make(chan result, len(parts))
	for i, p := range parts {
		go func() {
			defer fault.Catch(func(p *fault.Panic) { results <- result{i, nil, p} })
			fill, err := p.read(limited)
			results <- result{i, fill, err}
		}()
	}
	waiting := make([]bool, len(parts))
	for left := len(parts); left > 0; left-- {
		select {
		case r := <-results:
			waiting[r.part] = true
			if r.fill != nil {
				r.fill(&out)
			}
			if r.err != nil {
				out.Missing = append(out.Missing, parts[r.part].name+": "+run.Clean(r.err.Error(), 200))
			}
		case <-limited.Done():
			for i, p := range parts {
				if !waiting[i] {
					out.Missing = append(out.Missing, p.name+": no answer in time")
				}
			}
			left = 1
		}
	}
	slices.Sort(out.Missing)
	return out, ctx.Err()
}

// tidy makes a host's own word for something one clean line.
func tidy(s string) string { return run.Clean(s, 200) }

func readSystem(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	info, err := host.InfoWithContext(ctx)
	if err != nil {
		return nil, err
	}
	return func(out *capability.DiagSystemOut) {
		out.OSVersion = tidy(strings.TrimSpace(info.Platform + " " + info.PlatformVersion))
		out.Kernel = tidy(info.KernelVersion)
		if info.VirtualizationRole == "guest" {
			out.Virtualization = tidy(info.VirtualizationSystem)
		}
		out.BootTime = time.Unix(int64(info.BootTime), 0).UTC().Format(time.RFC3339)
		out.UptimeSeconds = info.Uptime
	}, nil
}

func readModel(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	info, err := cpu.InfoWithContext(ctx)
	if err != nil || len(info) == 0 {
		return nil, cmp.Or(err, fmt.Errorf("the system names none"))
	}
	return func(out *capability.DiagSystemOut) { out.CPUModel = tidy(info[0].ModelName) }, nil
}

func readLoad(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	if runtime.GOOS == "windows" {
		return nil, nil
	}
	avg, err := load.AvgWithContext(ctx)
	if err != nil {
		return nil, err
	}
	return func(out *capability.DiagSystemOut) { out.Load = []float64{avg.Load1, avg.Load5, avg.Load15} }, nil
}

func readCPU(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	use, err := cpu.PercentWithContext(ctx, 200*time.Millisecond, false)
	if err != nil || len(use) == 0 {
		return nil, cmp.Or(err, fmt.Errorf("the system tells none"))
	}
	return func(out *capability.DiagSystemOut) { out.CPUPercent = percent(use[0]) }, nil
}

// percent rounds to one digit: JSON has no NaN, and nobody reads more.
func percent(f float64) float64 {
	if f != f || f < 0 || f > 1e9 {
		return 0
	}
	return float64(int64(f*10+0.5)) / 10
}

func readMemory(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil, err
	}
	return func(out *capability.DiagSystemOut) { out.MemoryTotal, out.MemoryAvailable = m.Total, m.Available }, nil
}

func readSwap(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	m, err := mem.SwapMemoryWithContext(ctx)
	if err != nil {
		return nil, err
	}
	return func(out *capability.DiagSystemOut) { out.SwapTotal, out.SwapFree = m.Total, m.Free }, nil
}

// readDisks asks each mounted file system by itself: one that hangs costs its own line.
func readDisks(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	mounts, err := disk.PartitionsWithContext(ctx, false)
	if err != nil && len(mounts) == 0 {
		return nil, err
	}
	mounts = mounts[:min(len(mounts), diagMost)]
	type answer struct {
		i   int
		use *disk.UsageStat
		err error
	}
	answers := make(chan answer, len(mounts))
	for i, m := range mounts {
		go func() {
			defer fault.Catch(func(p *fault.Panic) { answers <- answer{i, nil, p} })
			use, err := disk.UsageWithContext(ctx, m.Mountpoint)
			answers <- answer{i, use, err}
		}()
	}
	late := time.NewTimer(diagTime / 2)
	defer late.Stop()
	disks := make([]*capability.DiagDisk, len(mounts))
	var silent int
wait:
	for range mounts {
		select {
		case a := <-answers:
			if a.err == nil {
				m := mounts[a.i]
				disks[a.i] = &capability.DiagDisk{Mount: tidy(m.Mountpoint), Device: tidy(m.Device), FSType: tidy(m.Fstype),
					TotalBytes: a.use.Total, FreeBytes: a.use.Free, UsedPercent: percent(a.use.UsedPercent)}
			}
		case <-late.C:
			break wait
		}
	}
	var list []capability.DiagDisk
	for _, d := range disks {
		if d == nil {
			silent++
		} else {
			list = append(list, *d)
		}
	}
	if silent > 0 {
		err = fmt.Errorf("%d mounted file systems gave no answer", silent)
	}
	return func(out *capability.DiagSystemOut) { out.Disks = append(out.Disks, list...) }, err
}

func readNetwork(context.Context) (func(*capability.DiagSystemOut), error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list []capability.DiagAddress
	for _, i := range ifs[:min(len(ifs), diagMost)] {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		a := capability.DiagAddress{Interface: tidy(i.Name), MAC: i.HardwareAddr.String(), Addresses: []string{}, Up: i.Flags&net.FlagUp != 0}
		if addrs, err := i.Addrs(); err == nil {
			for _, addr := range addrs {
				a.Addresses = append(a.Addresses, addr.String())
			}
		}
		list = append(list, a)
	}
	return func(out *capability.DiagSystemOut) { out.Network = append(out.Network, list...) }, nil
}

func readProcesses(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	all, err := process.ProcessesWithContext(ctx)
	if err != nil {
		return nil, err
	}
	type sized struct {
		p   *process.Process
		rss uint64
	}
	var list []sized
	for _, p := range all {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if m, err := p.MemoryInfoWithContext(ctx); err == nil && m != nil {
			list = append(list, sized{p, m.RSS})
		}
	}
	slices.SortFunc(list, func(a, b sized) int { return cmp.Compare(b.rss, a.rss) })
	var top []capability.DiagProcess
	for _, s := range list[:min(len(list), topCount)] {
		name, err := s.p.NameWithContext(ctx)
		if err != nil {
			continue // it ended meanwhile
		}
		d := capability.DiagProcess{PID: s.p.Pid, Name: tidy(name), RSSBytes: s.rss}
		if user, err := s.p.UsernameWithContext(ctx); err == nil {
			d.User = tidy(user)
		}
		if use, err := s.p.CPUPercentWithContext(ctx); err == nil {
			d.CPUPercent = percent(use)
		}
		top = append(top, d)
	}
	return func(out *capability.DiagSystemOut) { out.Processes, out.Top = len(all), append(out.Top, top...) }, nil
}

func readUsers(ctx context.Context) (func(*capability.DiagSystemOut), error) {
	users, err := host.UsersWithContext(ctx)
	if os.IsNotExist(err) {
		return nil, nil // a system without a list of logins: a container, for one
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for _, u := range users {
		if name := tidy(u.User); name != "" && !slices.Contains(list, name) && len(list) < diagMost {
			list = append(list, name)
		}
	}
	return func(out *capability.DiagSystemOut) { out.Users = append(out.Users, list...) }, nil
}
