package capability

import (
	"io/fs"
	"os"

	"github.com/drover-fleet/drover/agent/internal/guard"
)

const openFlags = 0

// owners: the file infos of Windows name none.
type owners struct{}

func (*owners) of(fs.FileInfo) (owner, group string) { return "", "" }

// keepAttributes: the new file gets its folder's permissions, as every new file does.
func keepAttributes(*os.File, *os.File, fs.FileInfo) error { return nil }

// syncDir: a folder can't be synced here; the rename is journalled by the file system.
func syncDir(guard.Place) error { return nil }
