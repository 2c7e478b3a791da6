package identity

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// elevated is how a user becomes one who may use every folder.
const elevated = "as an administrator (what the agent is sent runs as one, too, then)"

// checkPrivate refuses a file or folder that others than its user, the system and the
// administrators may read or write. A folder takes its access list from the one it lies in,
// and everybody may read what lies under C:\. An empty folder holds no key yet: it's made
// private instead, and hands that down to what is made in it.
func checkPrivate(path string) error {
	me, err := user()
	if err != nil {
		return err
	}
	other, err := others(path, me)
	if err != nil || other == "" {
		return err
	}
	if entries, err := os.ReadDir(path); err == nil && len(entries) == 0 {
		return makePrivate(path, me, "OICI")
	}
	return fmt.Errorf("%s may be read or written by %s; its key must be considered known to them: enrol again with --replace and another --state folder, or, if nobody else was ever on this host, run: icacls \"%s\" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F *%s:(OI)(CI)F /T", path, other, path, me)
}

// user is the one the agent runs as.
func user() (*windows.SID, error) {
	u, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, fmt.Errorf("the agent's own user: %w", err)
	}
	return u.User.Sid, nil
}

// others names somebody whom the access list of path lets read or change it and who may do
// so only by that list: not the system, an administrator, the owner or me. "" is nobody.
func others(path string, me *windows.SID) (string, error) {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return "", &os.PathError{Op: "access list of", Path: path, Err: err}
	}
	list, _, err := sd.DACL()
	if err != nil {
		return "", &os.PathError{Op: "access list of", Path: path, Err: err}
	}
	if list == nil { // none at all is no restriction
		return "everybody", nil
	}
	trusted := []*windows.SID{me}
	if owner, _, err := sd.Owner(); err == nil && owner != nil {
		trusted = append(trusted, owner)
	}
	for _, kind := range []windows.WELL_KNOWN_SID_TYPE{windows.WinLocalSystemSid, windows.WinBuiltinAdministratorsSid, windows.WinCreatorOwnerSid, windows.WinCreatorOwnerRightsSid} {
		sid, err := windows.CreateWellKnownSid(kind)
		if err != nil {
			return "", err
		}
		trusted = append(trusted, sid)
	}
	for i := range uint32(list.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &ace); err != nil {
			return "", &os.PathError{Op: "access list of", Path: path, Err: err}
		}
		const use = windows.FILE_READ_DATA | windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | windows.WRITE_DAC | windows.WRITE_OWNER |
			windows.DELETE | windows.GENERIC_READ | windows.GENERIC_WRITE | windows.GENERIC_ALL
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || ace.Mask&use == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart)); !anyOf(trusted, sid) {
			if account, domain, _, err := sid.LookupAccount(""); err == nil {
				return domain + `\` + account, nil
			}
			return sid.String(), nil
		}
	}
	return "", nil
}

func anyOf(sids []*windows.SID, sid *windows.SID) bool {
	for _, s := range sids {
		if s.Equals(sid) {
			return true
		}
	}
	return false
}

// closeToOthers gives a file that was just written an access list of its own: it has the
// folder's only where the file system hands that down.
func closeToOthers(path string) error {
	me, err := user()
	if err != nil {
		return err
	}
	return makePrivate(path, me, "")
}

// makePrivate gives a file or an empty folder an access list of its own; with the flags
// OICI what is made in the folder inherits it.
func makePrivate(path string, me *windows.SID, flags string) error {
	var list strings.Builder
	for _, who := range []string{"SY", "BA", me.String()} {
		fmt.Fprintf(&list, "(A;%s;FA;;;%s)", flags, who)
	}
	sd, err := windows.SecurityDescriptorFromString("D:P" + list.String())
	if err != nil {
		return err
	}
	if err := setAccess(path, sd); err != nil {
		return &os.PathError{Op: "make private", Path: path, Err: err}
	}
	return nil
}

// setAccess replaces an access list, of that one file or folder.
func setAccess(path string, sd *windows.SECURITY_DESCRIPTOR) error {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	h, err := windows.CreateFile(name, windows.WRITE_DAC, share, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	return windows.SetKernelObjectSecurity(h, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, sd)
}

// checkOwner does nothing: whose folder it is, its access list tells.
func checkOwner(string) error { return nil }
