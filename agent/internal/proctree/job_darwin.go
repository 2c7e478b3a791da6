package proctree

func lostGroups(string) []*group { return nil }

func forgetLost([]*group) {}
