package main

import "os"

// checkOwner has nothing to refuse: what an administrator makes stays open to the folder's
// users by inheritance.
func checkOwner(string) error { return nil }

// own: who may make files in a folder is decided by the folder's access list.
func own(*os.File) bool { return true }
