package strict

import "testing"

// BenchmarkUnmarshal reads one document that is fine.
func BenchmarkUnmarshal(b *testing.B) {
	doc := []byte(`{"a":"019ad3c4-5f6a-7b8c-9d0e-000000000001","b":{"n":1},"l":[{"n":2},{"n":3}],"m":{"k":"v","l":"w"},"raw":{"path":"/srv/www","deep":[1,2,{"x":"y"}]},"flag":true}`)
	for name, lim := range map[string]Limits{"plain": {}, "numbers": {Numbers: true}, "extra": {Extra: true}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var v outer
				if err := Unmarshal(doc, &v, lim); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
