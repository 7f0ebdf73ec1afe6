//go:build !chaos

package killpoint

// Reach marks an arrival at a point.
func Reach(string) {}
