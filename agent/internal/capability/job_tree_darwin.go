package capability

func lostGroups(string) []*group { return nil }

func forgetLost([]*group) {}
