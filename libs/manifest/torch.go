package manifest

import (
	"archive/zip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path"
	"strings"
)

// Formats, as PartRef says them.
const (
	FormatTorch       = "torch"       // torch.save: a zip archive, every CRC right
	FormatTorchNoCRC  = "torch-nocrc" // torch.save told not to compute CRCs: complete, but it can't be checked from inside
	FormatTorchOld    = "torch-old"   // torch.save before 1.6: a bare pickle, recognised only
	FormatSafetensors = "safetensors" // header and ranges right; it has no checksum inside
	FormatOther       = "other"
)

const (
	maxZipEntries   = 1 << 18
	maxZipDirectory = 32 << 20    // bytes of it; what is made of it in memory takes several times as much
	maxSafetensors  = 100_000_000 // longest header that the format allows
	zipMagic        = "PK\x03\x04"
	oldTorchMagic   = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
	checkBufferSize = 256 << 10
)

// structure recognises a file's format by its first bytes and checks what the format allows to check without Python: that
// the file is whole and can be loaded. A *badFile means that it can't.
func structure(ctx context.Context, f *os.File, name string, size int64) (string, error) {
	head := make([]byte, 16)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	head = head[:n]
	ext := path.Ext(name)
	switch {
	case strings.HasPrefix(string(head), zipMagic):
		return torchZip(ctx, f, size)
	case strings.Contains(string(head), oldTorchMagic):
		return FormatTorchOld, nil
	case ext == ".safetensors":
		return FormatSafetensors, safetensors(f, size)
	case (ext == ".pt" || ext == ".pth") && len(head) == 0:
		return "", &badFile{"it is empty"}
	}
	return FormatOther, nil
}

// torchZip reads every entry of a zip archive. torch.load does not look at the CRCs, so nobody else would notice.
func torchZip(ctx context.Context, f io.ReaderAt, size int64) (string, error) {
	src := &zipSource{ctx: ctx, r: f, left: maxZipDirectory}
	z, err := zip.NewReader(src, size)
	switch {
	case src.failed != nil:
		return "", src.failed
	case src.tooLarge || err == nil && len(z.File) > maxZipEntries:
		return "", &badFile{fmt.Sprintf("the archive has more than %d entries, or too long a directory of them", maxZipEntries)}
	case err != nil:
		return "", &badFile{"it is no whole zip archive: " + err.Error()}
	}
	src.left = math.MaxInt64
	torch, wrong, first, packed := false, 0, "", uint64(0)
	buf := make([]byte, checkBufferSize)
	for _, e := range z.File {
		if strings.HasSuffix(e.Name, "/data.pkl") {
			torch = true
		}
		// Entries that lie on each other would have the same bytes read again and again.
		if packed += e.CompressedSize64; packed > uint64(size) || e.CompressedSize64 > uint64(size) {
			return "", &badFile{"the archive's entries are larger than the archive"}
		}
		ok := crcHolds(src, e, size, buf)
		switch {
		case src.failed != nil:
			return "", src.failed
		case !ok:
			if wrong++; first == "" {
				first = e.Name
			}
		}
	}
	switch {
	case !torch && wrong == 0:
		return FormatOther, nil // some other archive
	case wrong == 0:
		return FormatTorch, nil
	case torch && wrong == len(z.File):
		return FormatTorchNoCRC, nil // set_crc32_options(False) writes none that holds; damage spares some entry
	}
	return "", &badFile{fmt.Sprintf("entry %.100q of the archive is damaged, or does not match its CRC", first)}
}

// crcHolds reads one entry. That reading failed is noted in src, whatever the answer then is.
func crcHolds(src *zipSource, e *zip.File, size int64, buf []byte) bool {
	off, err := e.DataOffset()
	if err != nil || off < 0 || off > size {
		return false
	}
	if e.Method == zip.Store { // torch never compresses
		if e.CompressedSize64 != e.UncompressedSize64 || e.CompressedSize64 > uint64(size-off) {
			return false
		}
		h := crc32.NewIEEE()
		_, err := io.CopyBuffer(h, struct{ io.Reader }{io.NewSectionReader(src, off, int64(e.CompressedSize64))}, buf)
		return err == nil && h.Sum32() == e.CRC32
	}
	r, err := e.Open()
	if err != nil {
		return false
	}
	defer func() { _ = r.Close() }()
	_, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{r}, buf)
	return err == nil
}

// zipSource is the file as archive/zip reads it. It tells a disk that fails from an archive that is damaged, ends with ctx,
// and keeps a hostile directory from filling the memory.
type zipSource struct {
	ctx      context.Context
	r        io.ReaderAt
	left     int64 // bytes that may yet be read
	tooLarge bool
	failed   error
}

// What archive/zip makes room for before it has seen any entry: the count in a zip64 archive's end of directory.
const (
	zip64End      = "PK\x06\x06"
	zip64EndBytes = 56
	zip64Count    = 32
)

func (s *zipSource) ReadAt(b []byte, off int64) (int, error) {
	if s.ctx.Err() != nil {
		s.failed = errCancelled
		return 0, s.failed
	}
	if s.left -= int64(len(b)); s.left < 0 {
		s.tooLarge = true
		return 0, io.ErrUnexpectedEOF
	}
	if off < 0 {
		return 0, io.EOF // a place that the archive names, not a file that fails
	}
	n, err := s.r.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	if n == zip64EndBytes && string(b[:4]) == zip64End && binary.LittleEndian.Uint64(b[zip64Count:]) > maxZipEntries {
		s.tooLarge = true
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// safetensors checks the header: ranges sorted as they lie, without holes or overlaps, ending where the file ends.
func safetensors(f *os.File, size int64) error {
	var length [8]byte
	if size < int64(len(length)) {
		return &badFile{"it is too short for a header"}
	}
	if _, err := f.ReadAt(length[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n < 2 || n > maxSafetensors || int64(n) > size-8 {
		return &badFile{fmt.Sprintf("its header says it is %d bytes long, the file has %d", n, size)}
	}
	header := make([]byte, n)
	if _, err := f.ReadAt(header, 8); err != nil {
		return err
	}
	tensors := map[string]json.RawMessage{}
	if header[0] != '{' || json.Unmarshal(header, &tensors) != nil {
		return &badFile{"its header is no JSON object"}
	}
	ends := map[int64]int64{} // begin of each range that is not empty → its end
	total := size - 8 - int64(n)
	for name, raw := range tensors {
		if name == "__metadata__" {
			continue
		}
		var t struct {
			Offsets []int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &t); err != nil || len(t.Offsets) != 2 || t.Offsets[0] < 0 || t.Offsets[0] > t.Offsets[1] {
			return &badFile{fmt.Sprintf("tensor %.100q has no proper range", name)}
		}
		if t.Offsets[0] == t.Offsets[1] {
			continue
		}
		if _, taken := ends[t.Offsets[0]]; taken {
			return &badFile{fmt.Sprintf("tensor %.100q overlaps another", name)}
		}
		ends[t.Offsets[0]] = t.Offsets[1]
	}
	at := int64(0)
	for range len(ends) {
		end, ok := ends[at]
		if !ok {
			return &badFile{fmt.Sprintf("there is a hole, or an overlap, at byte %d of its data", at)}
		}
		at = end
	}
	if at != total {
		return &badFile{fmt.Sprintf("its tensors end at byte %d of %d", at, total)}
	}
	return nil
}
