// Package share shares out among principals what a host holds for all of them.
package share

// Half is what one principal may take of n of a thing that can't be taken back while it's
// used: one leaves room for others.
func Half[N int | int64](n N) N { return (n + 1) / 2 }

// Largest names who holds the most of those who can give something back; the first by name of
// several. ok is false when nobody can.
func Largest[N int | int64](held map[string]N, can func(who string) bool) (who string, ok bool) {
	for name, n := range held {
		if can(name) && (!ok || n > held[who] || n == held[who] && name < who) {
			who, ok = name, true
		}
	}
	return who, ok
}
