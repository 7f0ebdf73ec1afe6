package pci

import (
	"bufio"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// tree builds the sysfs that a file of testdata describes: path, vendor, class, NUMA node.
func tree(t *testing.T, name string) Tree {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	root := t.TempDir()
	links := filepath.Join(root, "bus/pci/devices")
	if err := os.MkdirAll(links, 0o755); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if lines.Text() == "" || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		w := strings.Fields(lines.Text())
		dir := filepath.Join(root, "devices", w[0])
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, file := range []string{"vendor", "class", "numa_node"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(w[i+1]+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("../../../devices/"+w[0], filepath.Join(links, filepath.Base(dir))); err != nil {
			t.Fatal(err)
		}
	}
	return Tree{Root: root}
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		machine, address, bridge string
		numa                     int32
		depth                    int
	}{
		{"dgx-a100", "0000:07:00.0", "0000:01:00.0", 3, 3},
		{"dgx-a100", "0000:0f:00.0", "0000:01:00.0", 3, 3},
		{"dgx-a100", "0000:0c:00.0", "0000:01:00.0", 3, 3},
		{"dgx-a100", "0000:bd:00.0", "0000:b1:00.0", 5, 3},
		{"hgx-h100", "0000:1b:00.0", "0000:19:00.0", 0, 5},
		{"hgx-h100", "0000:9d:00.0", "0000:98:00.0", 1, 3},
		{"hgx-h100", "0000:9a:00.0", "0000:98:00.0", 1, 3},
		{"pcie-only", "0000:17:00.0", "0000:16:02.0", 0, 1},
		{"pcie-only", "0000:ca:00.0", "0000:c9:02.0", 1, 1},
		{"vm-flat", "0000:00:05.0", "", -1, 0},
	} {
		p, err := tree(t, c.machine).Place(c.address)
		if err != nil {
			t.Errorf("%s %s: %v", c.machine, c.address, err)
			continue
		}
		if p.Switch != c.bridge || p.NUMA != c.numa || len(p.Path) != c.depth {
			t.Errorf("%s %s: %+v", c.machine, c.address, p)
		}
	}
}

func TestAccelerators(t *testing.T) {
	for machine, want := range map[string][]string{
		"dgx-a100":  {"0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0", "0000:87:00.0", "0000:90:00.0", "0000:b7:00.0", "0000:bd:00.0"},
		"hgx-h100":  {"0000:1b:00.0", "0000:9d:00.0"},
		"pcie-only": {"0000:17:00.0", "0000:ca:00.0"},
		"vm-flat":   {"0000:00:05.0", "0000:00:06.0"},
	} {
		got, err := tree(t, machine).Accelerators()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %v", machine, got, err)
		}
	}
	if got, err := (Tree{Root: t.TempDir()}).Accelerators(); err != nil || got != nil {
		t.Errorf("a machine without PCI: %v %v", got, err)
	}
}

func TestUnknownDeviceIsAnErrorAndAnUnknownPlace(t *testing.T) {
	p, err := tree(t, "vm-flat").Place("0000:07:00.0")
	if err == nil || p.NUMA != -1 || p.Switch != "" {
		t.Errorf("%+v %v", p, err)
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"00000000:07:00.0":         "0000:07:00.0",
		"0000:B7:00.0":             "0000:b7:00.0",
		"00010000:0F:1F.7":         "10000:0f:1f.7",
		"00000000:07:00\x00\x00":   "0000:07:00.0",
		"0000:07:00.0\x00\x00\x00": "0000:07:00.0",
	} {
		if got, err := Normalize(in); err != nil || got != want {
			t.Errorf("Normalize(%q) = %q, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "07:00.0", "pci0000:00", "0000:07:20.0", "0000:07:00.8", "0000:100:00.0"} {
		if got, err := Normalize(bad); err == nil {
			t.Errorf("Normalize(%q) = %q", bad, got)
		}
	}
}
