package capability

// DiagSystemIn has no members.
type DiagSystemIn struct{}

// DiagDisk is one mounted file system.
type DiagDisk struct {
	Mount       string  `json:"mount" jsonschema:"Where it's mounted."`
	Device      string  `json:"device" jsonschema:"The device."`
	FSType      string  `json:"fs_type" jsonschema:"The file system."`
	TotalBytes  uint64  `json:"total_bytes" jsonschema:"Size."`
	FreeBytes   uint64  `json:"free_bytes" jsonschema:"Free for ordinary users."`
	UsedPercent float64 `json:"used_percent" jsonschema:"Used, in percent."`
}

// DiagAddress is one network interface with its addresses.
type DiagAddress struct {
	Interface string   `json:"interface" jsonschema:"The interface."`
	MAC       string   `json:"mac,omitempty" jsonschema:"Its hardware address."`
	Addresses []string `json:"addresses" jsonschema:"Its addresses with prefix lengths."`
	Up        bool     `json:"up" jsonschema:"Whether it's up."`
}

// DiagProcess is one of the largest processes.
type DiagProcess struct {
	PID        int32   `json:"pid" jsonschema:"Process id."`
	Name       string  `json:"name" jsonschema:"Its name."`
	User       string  `json:"user,omitempty" jsonschema:"Whose it is."`
	RSSBytes   uint64  `json:"rss_bytes" jsonschema:"Resident memory."`
	CPUPercent float64 `json:"cpu_percent" jsonschema:"Share of one core since it started, in percent."`
}

// DiagSystemOut is the result of diag_system.
type DiagSystemOut struct {
	Hostname        string        `json:"hostname" jsonschema:"The host's own name."`
	OS              string        `json:"os" jsonschema:"linux, windows or darwin."`
	OSVersion       string        `json:"os_version" jsonschema:"Distribution and version."`
	Kernel          string        `json:"kernel" jsonschema:"Kernel version."`
	Arch            string        `json:"arch" jsonschema:"Processor architecture."`
	Virtualization  string        `json:"virtualization,omitempty" jsonschema:"The hypervisor or container runtime, where it shows."`
	Time            string        `json:"time" jsonschema:"The host's clock, RFC 3339 with its zone."`
	BootTime        string        `json:"boot_time" jsonschema:"RFC 3339, UTC."`
	UptimeSeconds   uint64        `json:"uptime_seconds" jsonschema:"Seconds since boot."`
	CPUModel        string        `json:"cpu_model" jsonschema:"The processor."`
	CPUs            int           `json:"cpus" jsonschema:"Logical processors."`
	Load            []float64     `json:"load" jsonschema:"Load averages over 1, 5 and 15 minutes; empty on Windows."`
	CPUPercent      float64       `json:"cpu_percent" jsonschema:"Used over the last 200 ms, over all processors."`
	MemoryTotal     uint64        `json:"memory_total_bytes" jsonschema:"Bytes."`
	MemoryAvailable uint64        `json:"memory_available_bytes" jsonschema:"Bytes that programs can get without swapping."`
	SwapTotal       uint64        `json:"swap_total_bytes" jsonschema:"Bytes."`
	SwapFree        uint64        `json:"swap_free_bytes" jsonschema:"Bytes."`
	Disks           []DiagDisk    `json:"disks" jsonschema:"Mounted file systems."`
	Network         []DiagAddress `json:"network" jsonschema:"Interfaces; loopback left out."`
	Processes       int           `json:"processes" jsonschema:"How many there are."`
	Top             []DiagProcess `json:"top_processes" jsonschema:"The ten with the most memory."`
	Users           []string      `json:"logged_in" jsonschema:"Who is logged in."`
	AgentVersion    string        `json:"agent_version" jsonschema:"The Drover agent's version."`
	AgentUser       string        `json:"agent_user" jsonschema:"The user that commands run as."`
	Missing         []string      `json:"missing" jsonschema:"Parts that could not be read, with the reason."`
}

// DiagSystem describes the host.
var DiagSystem = Define[DiagSystemIn, DiagSystemOut](Spec{
	Name: "diag_system", Title: "Describe one host's system", Version: 1,
	Doc:    "Tells operating system, uptime, load, memory, disks, network addresses, largest processes and logged-in users of the host named by agent_id. What can't be read is named in missing.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate, UntrustedInput}, Idempotent: true, Render: RenderJSON,
	Example: `{}`, Timeout: 30,
})
