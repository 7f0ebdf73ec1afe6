//go:build !cgo || !linux || nonvml

package nvml

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/libs/device"
)

func TestMain(m *testing.M) {
	MaybeChild()
	os.Exit(m.Run())
}

func TestWithoutNVMLOpenSaysSo(t *testing.T) {
	_, err := Open(t.Context(), Options{})
	if !errors.Is(err, device.ErrNoLibrary) || !strings.Contains(err.Error(), "built without NVML") || Built {
		t.Fatalf("got %v", err)
	}
}
