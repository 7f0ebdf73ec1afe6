package bustest

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/weft-fabric/weft/libs/bus"
)

func noise(n int) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = src.Read(b) // never fails
	return b
}

func get(t *testing.T, o bus.Objects, name string) []byte {
	t.Helper()
	r, err := o.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

// RunObjects holds an adapter of bus.Objects to its contract. open gives an empty bucket.
func RunObjects(t *testing.T, open func(t *testing.T) bus.Objects) {
	t.Run("bytes of any size come back", func(t *testing.T) {
		o := open(t)
		for _, n := range []int{0, 1, 100, 256 << 10, 256<<10 + 1, 9<<20 + 77} {
			want := noise(n)
			// One byte at a time for the small ones: how a source chops its bytes must not matter.
			var src io.Reader = bytes.NewReader(want)
			if n <= 100 {
				src = iotest.OneByteReader(src)
			}
			if err := o.Put(t.Context(), "b3-thing", src); err != nil {
				t.Fatal(err)
			}
			if got := get(t, o, "b3-thing"); !bytes.Equal(got, want) {
				t.Fatalf("%d bytes in, %d other ones out", len(want), len(got))
			}
		}
	})
	t.Run("absent, listed, deleted", func(t *testing.T) {
		o := open(t)
		ctx := t.Context()
		if _, err := o.Get(ctx, "spec-none"); !errors.Is(err, bus.ErrNotFound) {
			t.Fatalf("Get: %v", err)
		}
		if ok, err := o.Has(ctx, "spec-none"); ok || err != nil {
			t.Fatalf("Has: %v, %v", ok, err)
		}
		if l, err := o.List(ctx, ""); err != nil || len(l) != 0 {
			t.Fatalf("List: %v, %v", l, err)
		}
		for _, n := range []string{"spec-b", "b3-x", "spec-a"} {
			if err := o.Put(ctx, n, bytes.NewReader([]byte(n))); err != nil {
				t.Fatal(err)
			}
		}
		if ok, err := o.Has(ctx, "spec-a"); !ok || err != nil {
			t.Fatalf("Has: %v, %v", ok, err)
		}
		if l, err := o.List(ctx, "spec-"); err != nil || !slices.Equal(l, []string{"spec-a", "spec-b"}) {
			t.Fatalf("List: %v, %v", l, err)
		}
		for range 2 { // the second time it is gone already
			if err := o.Delete(ctx, "spec-a"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := o.Get(ctx, "spec-a"); !errors.Is(err, bus.ErrNotFound) {
			t.Fatalf("Get of a deleted one: %v", err)
		}
		if l, err := o.List(ctx, "spec-"); err != nil || !slices.Equal(l, []string{"spec-b"}) {
			t.Fatalf("List: %v, %v", l, err)
		}
	})
	t.Run("a source that fails leaves nothing", func(t *testing.T) {
		o := open(t)
		broken := errors.New("disk gone")
		src := io.MultiReader(bytes.NewReader(noise(600<<10)), iotest.ErrReader(broken))
		if err := o.Put(t.Context(), "b3-half", src); !errors.Is(err, broken) {
			t.Fatalf("Put: %v", err)
		}
		if ok, err := o.Has(t.Context(), "b3-half"); ok || err != nil {
			t.Fatalf("Has: %v, %v", ok, err)
		}
	})
	t.Run("names", func(t *testing.T) {
		o := open(t)
		for _, n := range []string{"", "a/b", "a b", "a>"} {
			if err := o.Put(t.Context(), n, bytes.NewReader(nil)); err == nil {
				t.Fatalf("name %q was taken", n)
			}
		}
	})
}
