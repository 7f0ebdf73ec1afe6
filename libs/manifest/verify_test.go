package manifest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

func TestVerify(t *testing.T) {
	root := t.TempDir()
	dir := publish(t, root, record(2, 7, twoFiles), twoFiles)
	ref, node, err := VerifyOrigin(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if node != "n1" || ref.GetPath() != "acme/j1/a1-s000000000007-full/rank-2" || ref.GetRanks()[0] != 2 || len(ref.GetDeclared()) != 4 ||
		ref.GetFormat() != FormatOther || len(ref.GetManifestHash()) != 64 {
		t.Errorf("on %s: %v", node, ref)
	}
	if f := ref.GetFiles()[1]; f.GetName() != "state.bin" || f.GetBytes() != 7 || len(f.GetBlake3()) != 64 ||
		f.GetCrc64Nvme() != crc64.Checksum([]byte("weights"), CRC64NVME) {
		t.Errorf("file %v", f)
	}
	if err := saveid.Check(ref); err != nil {
		t.Errorf("what was verified may not be reported: %v", err)
	}
}

// TestCRC64NVME checks the polynomial by the check value of its specification.
func TestCRC64NVME(t *testing.T) {
	if got := crc64.Checksum([]byte("123456789"), CRC64NVME); got != 0xae8b14860a799888 {
		t.Errorf("%#x", got)
	}
}

// TestDamage changes one thing in a part that is whole. Each is final: looking again would not help.
func TestDamage(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) error
		why    string
	}{
		"a bit":             {func(d string) error { return os.WriteFile(d+"/state.bin", []byte("weighus"), 0o600) }, "SHA-256"},
		"truncated":         {func(d string) error { return os.Truncate(d+"/state.bin", 3) }, "3 bytes, 7 were saved"},
		"longer":            {func(d string) error { return os.WriteFile(d+"/state.bin", []byte("weights!"), 0o600) }, "8 bytes, 7 were saved"},
		"missing":           {func(d string) error { return os.Remove(d + "/state.bin") }, "missing"},
		"missing directory": {func(d string) error { return os.RemoveAll(d + "/optim") }, "missing"},
		"no record":         {func(d string) error { return os.Remove(d + "/part.json") }, "no part.json"},
		"empty record":      {func(d string) error { return os.Truncate(d+"/part.json", 0) }, "part.json"},
		"half a record":     {func(d string) error { return os.Truncate(d+"/part.json", 200) }, "part.json"},
		"huge record":       {func(d string) error { return os.Truncate(d+"/part.json", 1<<40) }, "more than"},
		"record is a link":  {func(d string) error { return replace(d+"/part.json", "/etc/passwd") }, "no regular file"},
		"record is a dir":   {func(d string) error { return errors.Join(os.Remove(d+"/part.json"), os.Mkdir(d+"/part.json", 0o755)) }, "no regular file"},
		"record is a pipe": {func(d string) error {
			return errors.Join(os.Remove(d+"/part.json"), unix.Mkfifo(d+"/part.json", 0o600))
		}, "no regular file"},
		"link to itself": {func(d string) error { return replace(d+"/state.bin", "state.bin") }, "neither"},
		"link to a copy": {func(d string) error {
			return errors.Join(os.Link(d+"/state.bin", d+"/../copy"), replace(d+"/state.bin", "../copy"))
		}, "neither"},
		"pipe": {func(d string) error {
			return errors.Join(os.Remove(d+"/state.bin"), unix.Mkfifo(d+"/state.bin", 0o600))
		}, "neither"},
		"socket or device": {func(d string) error { return unix.Mknod(d+"/x", unix.S_IFSOCK|0o600, 0) }, "neither"},
		"directory is a link": {func(d string) error {
			return errors.Join(os.Rename(d+"/optim", d+"/../o"), os.Symlink("../o", d+"/optim"))
		}, "neither"},
		"dir in place of it": {func(d string) error { return errors.Join(os.Remove(d+"/state.bin"), os.Mkdir(d+"/state.bin", 0o755)) }, "regular file"},
		"not listed":         {func(d string) error { return os.WriteFile(d+"/more.bin", nil, 0o600) }, "not listed"},
		"another record":     {func(d string) error { return os.WriteFile(d+"/optim/part.json", nil, 0o600) }, "not listed"},
		"crowded": {func(d string) error {
			return crowd(d, 2100, func(p string) error { return os.WriteFile(p, nil, 0o600) })
		}, "too much"},
		"crowded with dirs": {func(d string) error { return crowd(d, 2100, func(p string) error { return os.Mkdir(p, 0o755) }) }, "too much"},
		"crowded below": {func(d string) error {
			return crowd(d+"/optim", 2100, func(p string) error { return os.Mkdir(p, 0o755) })
		}, "too much"},
		"deep": {func(d string) error { return os.MkdirAll(d+strings.Repeat("/d", 40), 0o755) }, "too deep"},
		"moved to a rank": {func(d string) error {
			return errors.Join(os.Rename(d, d+"1"), os.CopyFS(d, os.DirFS(d+"1")), renumber(d))
		}, "belongs to"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := publish(t, t.TempDir(), record(1, 7, twoFiles), twoFiles)
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			ref, err := Verify(t.Context(), dir)
			wantCorrupt(t, err, c.why)
			if ref != nil {
				t.Error("damage was returned as a part")
			}
		})
	}
}

func replace(path, target string) error {
	return errors.Join(os.Remove(path), os.Symlink(target, path))
}

// renumber makes a record say another rank than its directory does.
func renumber(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, PartFile))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, PartFile), []byte(strings.Replace(string(b), `"rank":1`, `"rank":3`, 1)), 0o600)
}

func crowd(dir string, n int, add func(string) error) error {
	for i := range n {
		if err := add(filepath.Join(dir, fmt.Sprint("x", i))); err != nil {
			return err
		}
	}
	return nil
}

// TestManyDirectories: as many files as there may be, most in a directory of their own.
func TestManyDirectories(t *testing.T) {
	files := map[string]string{}
	for i := range saveid.MaxFiles {
		files[fmt.Sprintf("d%d/f%d", i%990, i)] = ""
	}
	if _, err := Verify(t.Context(), publish(t, t.TempDir(), record(1, 7, files), files)); err != nil {
		t.Error(err)
	}
}

// TestLeftByNFS: what a client keeps for files that are open and deleted is no damage.
func TestLeftByNFS(t *testing.T) {
	dir := publish(t, t.TempDir(), record(1, 7, twoFiles), twoFiles)
	write(t, filepath.Join(dir, ".nfs000000000001"), nil)
	if _, err := Verify(t.Context(), dir); err != nil {
		t.Error(err)
	}
}

// TestNotFinal: what could not be read says nothing about the part.
func TestNotFinal(t *testing.T) {
	root := t.TempDir()
	dir := publish(t, root, record(1, 7, twoFiles), twoFiles)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Verify(ctx, dir)
	wantLater(t, err)
	for _, gone := range []string{"acme/j1/a1-s000000000007-full/rank-0", "acme/j1/a1-s000000000008-full/rank-1", "acme/j2/a1-s000000000007-full/rank-1"} {
		if _, err = Verify(t.Context(), filepath.Join(root, gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	for _, path := range []string{"", "/", "/a/b", "acme/j1/a1-s000000000007-full/rank-1", "/a/b/c"} {
		_, err = Verify(t.Context(), path)
		wantLater(t, err)
	}
}

// TestLinksAboveThePart: no name on the way to a part may be a link either, though all is in place behind it.
func TestLinksAboveThePart(t *testing.T) {
	for _, at := range []string{"acme", "acme/j1", "acme/j1/a1-s000000000007-full", "acme/j1/a1-s000000000007-full/rank-1"} {
		t.Run(at, func(t *testing.T) {
			root, other := t.TempDir(), t.TempDir()
			dir := publish(t, root, record(1, 7, twoFiles), twoFiles)
			if err := errors.Join(os.Rename(filepath.Join(root, at), other+"/x"), os.Symlink(other+"/x", filepath.Join(root, at))); err != nil {
				t.Fatal(err)
			}
			_, err := Verify(t.Context(), dir)
			wantCorrupt(t, err, "neither")
			paths, err := ListParts(root)
			if strings.HasSuffix(at, "rank-1") {
				if err != nil || len(paths) != 1 { // listed by its name; to verify it fails
					t.Errorf("%v, %v", paths, err)
				}
			} else if err != nil || len(paths) > 0 {
				t.Errorf("listed through a link: %v, %v", paths, err)
			}
		})
	}
}

// TestSwappedWhileRead: a writer that swaps directories and links under the reader never leads it out. What it could see
// elsewhere would verify.
func TestSwappedWhileRead(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	dir := publish(t, root, record(1, 7, twoFiles), twoFiles)
	secret := filepath.Join(other, "optim")
	write(t, filepath.Join(secret, "0.bin"), []byte("momentum"))
	if err := os.Symlink(secret, filepath.Join(dir, "../link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "optim/0.bin")); err != nil { // only behind the link is the part whole
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "../link"), unix.AT_FDCWD, filepath.Join(dir, "optim"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 500 {
		if ref, err := Verify(t.Context(), dir); err == nil {
			t.Errorf("verified through a link: %v", ref)
			break
		}
	}
	close(stop)
	<-done
}
