package capability

import (
	"io/fs"
	"os"
)

const openFlags = 0

// inodeOf: the file infos of Windows have none.
func inodeOf(fs.FileInfo) uint64 { return 0 }

// private: who may make files in a folder is decided by the folder's access list.
func private(info fs.FileInfo) bool { return info.Mode().IsRegular() }

// owners: the file infos of Windows name none.
type owners struct{}

func (*owners) of(fs.FileInfo) (owner, group string) { return "", "" }

// keepAttributes: the new file gets its folder's permissions, as every new file does.
func keepAttributes(*os.File, *os.File, fs.FileInfo) error { return nil }
