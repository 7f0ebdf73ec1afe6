package manifest

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archive is what torch.save writes: entries that are stored, not compressed.
func archive(t testing.TB, method uint16, entries ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i, content := range entries {
		name := "archive/data.pkl"
		if i > 0 {
			name = fmt.Sprintf("archive/data/%d", i)
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// wrongCRCs makes every CRC of an archive wrong, as when torch is told to compute none.
func wrongCRCs(t testing.TB, b []byte, contents ...string) []byte {
	t.Helper()
	for _, c := range contents {
		crc := binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(c)))
		if !bytes.Contains(b, crc) {
			t.Fatal("the CRC is not in the archive")
		}
		b = bytes.ReplaceAll(b, crc, []byte{1, 2, 3, 4})
	}
	return b
}

func tensors(header, data string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+data...)
}

// overlapping is an archive whose every entry is all of the same bytes.
func overlapping(t testing.TB) []byte {
	t.Helper()
	b := archive(t, zip.Store, "pickle", strings.Repeat("x", 1000), strings.Repeat("x", 1000))
	first := bytes.Index(b, []byte("PK\x01\x02"))
	second := first + 1 + bytes.Index(b[first+1:], []byte("PK\x01\x02"))
	third := second + 1 + bytes.Index(b[second+1:], []byte("PK\x01\x02"))
	copy(b[third+42:third+46], b[second+42:second+46]) // offset of the local header
	for _, at := range []int{second, third} {
		binary.LittleEndian.PutUint32(b[at+20:], 1500)
		binary.LittleEndian.PutUint32(b[at+24:], 1500)
	}
	return b
}

// manyEntries is an archive that says in its end of directory how many entries it has.
func manyEntries(t testing.TB, n uint64, size int) []byte {
	t.Helper()
	b := append(archive(t, zip.Store, "pickle")[:60:60], make([]byte, size)...)
	at := len(b)
	b = append(b, zip64End...)
	b = append(b, make([]byte, zip64EndBytes-4)...)
	binary.LittleEndian.PutUint64(b[at+24:], n)
	binary.LittleEndian.PutUint64(b[at+zip64Count:], n)
	b = append(b, "PK\x06\x07\x00\x00\x00\x00"...)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = append(b, 1, 0, 0, 0)
	b = append(b, "PK\x05\x06\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00"...)
	return b
}

func flipped(b []byte, part string) []byte {
	b = bytes.Clone(b)
	b[bytes.Index(b, []byte(part))] ^= 1
	return b
}

// TestStructure: bytes that are as they were saved, and could be loaded or not.
func TestStructure(t *testing.T) {
	torch := archive(t, zip.Store, "the pickle", "tensor one", "tensor two")
	for name, c := range map[string]struct {
		file    string
		content []byte
		format  string // or
		why     string
	}{
		"torch":                   {file: "a.pt", content: torch, format: FormatTorch},
		"torch of any name":       {file: "model", content: torch, format: FormatTorch},
		"torch compressed":        {file: "a.pt", content: archive(t, zip.Deflate, "the pickle", "tensor"), format: FormatTorch},
		"torch without CRCs":      {file: "a.pt", content: wrongCRCs(t, archive(t, zip.Store, "pickle", "tensor"), "pickle", "tensor"), format: FormatTorchNoCRC},
		"one wrong tensor":        {file: "a.pt", content: flipped(torch, "tensor two"), why: "data/2"},
		"damaged and compressed":  {file: "a.pt", content: wrongCRCs(t, archive(t, zip.Deflate, "pickle", "tensor"), "tensor"), why: "data/1"},
		"torch cut short":         {file: "a.pt", content: torch[:len(torch)-10], why: "no whole zip"},
		"torch cut to a head":     {file: "a.pt", content: torch[:4], why: "no whole zip"},
		"empty .pt":               {file: "a.pt", content: nil, why: "empty"},
		"empty .bin":              {file: "a.bin", content: nil, format: FormatOther},
		"text":                    {file: "a.txt", content: []byte("hello"), format: FormatOther},
		"torch before 1.6":        {file: "a.pt", content: []byte("\x80\x02" + oldTorchMagic + "."), format: FormatTorchOld},
		"overlapping entries":     {file: "a.pt", content: overlapping(t), why: "larger than the archive"},
		"zip64 with a huge count": {file: "a.pt", content: manyEntries(t, maxZipEntries+1, 64), why: "more than"},
		"zip64 with no entries":   {file: "a.pt", content: manyEntries(t, 5, 64), why: "no whole zip"},
		"safetensors":             {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[4,6]},"e":{"data_offsets":[4,4]},"__metadata__":{}}`, "123456"), format: FormatSafetensors},
		"no tensors":              {file: "a.safetensors", content: tensors(`{}`, ""), format: FormatSafetensors},
		"too short":               {file: "a.safetensors", content: []byte("1234567"), why: "too short"},
		"empty safetensors":       {file: "a.safetensors", content: nil, why: "too short"},
		"header beyond the end":   {file: "a.safetensors", content: tensors(`{}`, "")[:9], why: "header says"},
		"huge header":             {file: "a.safetensors", content: bytes.Repeat([]byte{0xff}, 64), why: "header says"},
		"header is a list":        {file: "a.safetensors", content: tensors(`[]`, ""), why: "no JSON object"},
		"hole":                    {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,2]},"b":{"data_offsets":[3,6]}}`, "123456"), why: "hole"},
		"overlap":                 {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[3,6]}}`, "123456"), why: "hole, or an overlap"},
		"same place":              {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,6]},"b":{"data_offsets":[0,6]}}`, "123456"), why: "overlaps"},
		"data cut short":          {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,6]}}`, "12345"), why: "end at byte 6 of 5"},
		"more data":               {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,6]}}`, "1234567"), why: "end at byte 6 of 7"},
		"negative range":          {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[-1,6]}}`, "123456"), why: "no proper range"},
		"backward range":          {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[6,0]}}`, "123456"), why: "no proper range"},
		"huge range":              {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,9223372036854775807]}}`, "123456"), why: "end at byte"},
		"three offsets":           {file: "a.safetensors", content: tensors(`{"a":{"data_offsets":[0,1,2]}}`, "123456"), why: "no proper range"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{c.file: string(c.content)}
			ref, err := Verify(t.Context(), publish(t, t.TempDir(), record(1, 7, files), files))
			if c.why != "" {
				wantCorrupt(t, err, c.why)
			} else if err != nil || ref.GetFormat() != c.format {
				t.Errorf("format %q, %v; want %q", ref.GetFormat(), err, c.format)
			}
		})
	}
}

// TestDirectoryTooLong: a directory that would fill the memory is not read to its end, whatever it says of itself.
func TestDirectoryTooLong(t *testing.T) {
	b := archive(t, zip.Store, "pickle")
	at := bytes.Index(b, []byte("PK\x01\x02"))
	end := bytes.Index(b, []byte("PK\x05\x06"))
	entry := b[at:end]
	n := maxZipDirectory / len(entry) * 5 / 4
	long := append(append(bytes.Clone(b[:at]), bytes.Repeat(entry, n)...), b[end:]...)
	tail := long[len(long)-22:]
	binary.LittleEndian.PutUint16(tail[8:], uint16(n))
	binary.LittleEndian.PutUint16(tail[10:], uint16(n))
	binary.LittleEndian.PutUint32(tail[12:], uint32(n*len(entry)))
	src := &countingReader{r: bytes.NewReader(long)}
	_, err := torchZip(t.Context(), src, int64(len(long)))
	if bad := (*badFile)(nil); !errors.As(err, &bad) || !strings.Contains(bad.reason, "more than") {
		t.Error(err)
	}
	if src.n > maxZipDirectory+1<<17 {
		t.Errorf("%d bytes were read", src.n)
	}
}

type countingReader struct {
	r io.ReaderAt
	n int64
}

func (c *countingReader) ReadAt(b []byte, off int64) (int, error) {
	c.n += int64(len(b))
	return c.r.ReadAt(b, off)
}

// brokenReader fails from its n-th read on.
type brokenReader struct {
	r     io.ReaderAt
	n     int
	after func()
}

var errDisk = errors.New("input/output error")

func (c *brokenReader) ReadAt(b []byte, off int64) (int, error) {
	if c.n--; c.n < 0 {
		if c.after != nil {
			c.after()
			return c.r.ReadAt(b, off)
		}
		return 0, errDisk
	}
	return c.r.ReadAt(b, off)
}

// TestFailingDiskIsNoDamage fails at every read in turn: none may be taken for an archive that is damaged, or whole.
func TestFailingDiskIsNoDamage(t *testing.T) {
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		b := archive(t, method, "the pickle", strings.Repeat("tensor", 100_000))
		n := 0
		for ; ; n++ {
			format, err := torchZip(t.Context(), &brokenReader{r: bytes.NewReader(b), n: n}, int64(len(b)))
			if err == nil && format == FormatTorch {
				break
			}
			if !errors.Is(err, errDisk) {
				t.Errorf("method %d, read %d: %q, %v", method, n, format, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if _, err := torchZip(ctx, &brokenReader{r: bytes.NewReader(b), n: n, after: cancel}, int64(len(b))); err != nil && !errors.Is(err, errCancelled) {
				t.Errorf("method %d, cancelled at read %d: %v", method, n, err)
			}
			cancel()
		}
		if n < 5 {
			t.Errorf("only %d reads", n)
		}
	}
}

// TestFormatsOfAPart: several files, several formats.
func TestFormatsOfAPart(t *testing.T) {
	files := map[string]string{"a.pt": string(archive(t, zip.Store, "pickle")), "b.safetensors": string(tensors(`{}`, "")), "c.json": "{}"}
	dir := publish(t, t.TempDir(), record(0, 1, files), files)
	ref, err := Verify(t.Context(), dir)
	if err != nil || ref.GetFormat() != "other,safetensors,torch" {
		t.Errorf("%q, %v", ref.GetFormat(), err)
	}
	if err := os.Chmod(filepath.Join(dir, "b.safetensors"), 0); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 { // root reads it all the same
		_, err = Verify(t.Context(), dir)
		wantLater(t, err)
	}
}
