package manifest

import (
	"archive/zip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

// FuzzParse: what passes names nothing outside its part, and may be reported as it is.
func FuzzParse(f *testing.F) {
	good := string(encode(f, record(1, 7, twoFiles)))
	for _, text := range []string{
		good, "{}", "null", "[]", "",
		strings.Replace(good, "state.bin", "../../../etc/passwd", 1),
		strings.Replace(good, "optim/0.bin", "state.bin", 1),
		strings.Replace(good, `"0-3"`, `"0-65535,0-65535"`, 1),
		strings.Replace(good, `"bytes":8`, `"bytes":-8`, 1),
		strings.Replace(good, `"rank":1`, `"rank":null`, 1),
		strings.Replace(good, `"rank":1`, `"RANK":1,"rank":1`, 1),
		strings.Replace(good, "acme", "..", 1),
		good[:len(good)/2], good + good,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ref, err := parse(b)
		if err != nil {
			return
		}
		if err := saveid.Check(ref); err != nil {
			t.Fatalf("parsed, and may not be reported: %v", err)
		}
		if !filepath.IsLocal(ref.GetPath()) || strings.Count(ref.GetPath(), "/") != 3 || len(p.Files) != len(ref.GetFiles()) {
			t.Fatalf("path %q, %d and %d files", ref.GetPath(), len(p.Files), len(ref.GetFiles()))
		}
		for _, file := range p.Files {
			if !filepath.IsLocal(file.Name) || file.Name == PartFile || file.Bytes < 0 {
				t.Fatalf("file %q of %d bytes", file.Name, file.Bytes)
			}
		}
		if _, err := proto.Marshal(ref); err != nil { // text that is not UTF-8 could never be sent
			t.Fatal(err)
		}
		if _, again, err := parse(encode(t, p)); err != nil || !proto.Equal(ref, again) {
			t.Fatalf("written again: %v, %v; was %v", again, err, ref)
		}
	})
}

// FuzzVerify: a file whose record is right is whole or not, never a crash, and always in the same way; with any byte of it
// changed it never verifies.
func FuzzVerify(f *testing.F) {
	for _, name := range []string{"a.pt", "a.safetensors"} {
		for _, content := range [][]byte{
			nil, []byte("hello"), archive(f, zip.Store, "pickle", "tensor"), archive(f, zip.Deflate, "pickle", "tensor"), overlapping(f),
			manyEntries(f, 1<<40, 100), tensors(`{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[4,6]}}`, "123456"), []byte(oldTorchMagic),
		} {
			f.Add(name, content, uint(0))
		}
	}
	f.Fuzz(func(t *testing.T, name string, content []byte, at uint) {
		if !saveid.FileName(name) || strings.HasPrefix(name, ".nfs") || strings.Contains(name, "/") || len(name) > 200 {
			return
		}
		files := map[string]string{name: string(content)}
		root := t.TempDir()
		dir := publish(t, root, record(1, 7, files), files)
		ref, err := Verify(t.Context(), dir)
		var bad *Corrupt
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("neither whole nor corrupt: %v", err)
		}
		if again, err2 := Verify(t.Context(), dir); (err == nil) != (err2 == nil) || !proto.Equal(ref, again) {
			t.Fatalf("first %v, %v; then %v, %v", ref, err, again, err2)
		}
		if len(content) == 0 {
			return
		}
		content[at%uint(len(content))] ^= 1
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(t.Context(), dir); !errors.As(err, &bad) {
			t.Fatalf("a changed byte: %v", err)
		}
	})
}

// FuzzRecord: whatever stands in part.json, nothing is verified but what lies in the part.
func FuzzRecord(f *testing.F) {
	good := string(encode(f, record(1, 7, twoFiles)))
	f.Add([]byte(good))
	f.Add([]byte(strings.Replace(good, "optim/0.bin", "optim/../../rank-1/optim/0.bin", 1)))
	f.Add([]byte(strings.Replace(good, `"rank":1`, `"rank":2`, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		root := t.TempDir()
		dir := publish(t, root, record(1, 7, twoFiles), twoFiles)
		write(t, filepath.Join(dir, PartFile), b)
		ref, err := Verify(t.Context(), dir)
		var bad *Corrupt
		if err != nil {
			if !errors.As(err, &bad) {
				t.Fatalf("neither whole nor corrupt: %v", err)
			}
			return
		}
		if ref.GetPath() != "acme/j1/a1-s000000000007-full/rank-1" || len(ref.GetFiles()) != 2 || ref.GetFiles()[1].GetName() != "state.bin" {
			t.Fatalf("verified as %v", ref)
		}
	})
}
