package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func names(t *testing.T, b *Bundle) []string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(b.Data))
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(gz)
	var out []string
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h.Name)
	}
}

func TestPackIsTheSameForTheSameFiles(t *testing.T) {
	files := map[string]string{"train.py": "print(1)", "data/a.csv": "1,2"}
	one, two := t.TempDir(), t.TempDir()
	write(t, one, files)
	write(t, two, files)
	if err := os.Chtimes(filepath.Join(two, "train.py"), testTime, testTime); err != nil {
		t.Fatal(err)
	}
	a, err := Pack(one)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Pack(two)
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest != b.Digest {
		t.Fatalf("digests differ: %s, %s", a.Digest, b.Digest)
	}
	write(t, two, map[string]string{"train.py": "print(2)"})
	if c, _ := Pack(two); c.Digest == a.Digest {
		t.Fatal("other content, same digest")
	}
}

func TestPackLeavesOutWhatIsIgnored(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"train.py": "", "notes.txt": "", "deep/er/x.log": "", "out/model.pt": "", "keep/out.txt": "", "top.bin": "", "keep/top.bin": "",
		".git/HEAD": "", "a/__pycache__/x.pyc": "", IgnoreFile: "# at home\n*.log\nout/\n/top.bin\n",
	})
	b, err := Pack(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{IgnoreFile, "keep/out.txt", "keep/top.bin", "notes.txt", "train.py"}
	if got := names(t, b); !slices.Equal(got, want) {
		t.Fatalf("packed %v, want %v", got, want)
	}
}

func TestPackRefusesLinksThatLeave(t *testing.T) {
	for _, target := range []string{"/etc/passwd", "../secret", "sub/../../secret"} {
		dir := t.TempDir()
		if err := os.Symlink(target, filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		if _, err := Pack(dir); err == nil || !strings.Contains(err.Error(), "link") {
			t.Errorf("link to %s: %v", target, err)
		}
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "x"})
	if err := os.Symlink("a", filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if b, err := Pack(dir); err != nil || b.Files != 2 {
		t.Fatalf("a link inside: %v", err)
	}
}

var testTime = time.Unix(1_000_000_000, 0)

func TestWhatIsNoDirectorySaysWhatToWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nothing", "file"} {
		if _, err := Pack(filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), "write files: . ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
