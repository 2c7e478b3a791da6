package identity

import "os"

// elevated is how a user becomes one who may use every folder.
const elevated = "as an administrator (what the agent is sent runs as one, too, then)"

// checkPrivate only tells whether path exists: on Windows the state folder's access list is
// inherited from the profile or set by the service's installation.
func checkPrivate(path string) error {
	_, err := os.Stat(path)
	return err
}

// checkOwner does nothing: folders hand down their access lists on Windows.
func checkOwner(string) error { return nil }
