package manifest

import (
	"archive/zip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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
	maxZipEntries   = 1 << 20
	maxSafetensors  = 100_000_000 // longest header that the format allows
	zipMagic        = "PK\x03\x04"
	oldTorchMagic   = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
	checkBufferSize = 256 << 10
)

// structure recognises a file's format by its first bytes and checks what the format allows to check without Python: that
// the file is whole and can be loaded. A *badFile means that it can't.
func structure(f *os.File, name string, size int64) (string, error) {
	head := make([]byte, 16)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	head = head[:n]
	ext := path.Ext(name)
	switch {
	case strings.HasPrefix(string(head), zipMagic):
		return torchZip(f, size)
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
func torchZip(f *os.File, size int64) (string, error) {
	z, err := zip.NewReader(f, size)
	if err != nil {
		return "", &badFile{"it is no whole zip archive: " + err.Error()}
	}
	if len(z.File) > maxZipEntries {
		return "", &badFile{fmt.Sprintf("the archive has %d entries", len(z.File))}
	}
	torch, wrong, first := false, 0, ""
	buf := make([]byte, checkBufferSize)
	for _, e := range z.File {
		if strings.HasSuffix(e.Name, "/data.pkl") {
			torch = true
		}
		switch ok, err := crcHolds(f, e, size, buf); {
		case err != nil:
			return "", err
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

// crcHolds reads one entry; an error is one of reading the file, never of its content.
func crcHolds(f *os.File, e *zip.File, size int64, buf []byte) (bool, error) {
	off, err := e.DataOffset()
	if err != nil || off < 0 || off > size {
		return false, nil
	}
	if e.Method == zip.Store { // torch never compresses; archive/zip would report a wrong CRC like a failing disk
		if e.CompressedSize64 != e.UncompressedSize64 || e.CompressedSize64 > uint64(size-off) {
			return false, nil
		}
		h := crc32.NewIEEE()
		if _, err := io.CopyBuffer(h, struct{ io.Reader }{io.NewSectionReader(f, off, int64(e.CompressedSize64))}, buf); err != nil {
			return false, err
		}
		return h.Sum32() == e.CRC32, nil
	}
	r, err := e.Open()
	if err != nil {
		return false, nil
	}
	defer func() { _ = r.Close() }()
	_, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{r}, buf)
	return err == nil, nil
}

// safetensors checks the header: ranges sorted as they lie, without holes or overlaps, ending where the file ends.
func safetensors(f *os.File, size int64) error {
	var length [8]byte
	if _, err := f.ReadAt(length[:], 0); err != nil {
		return &badFile{"it is too short for a header"}
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
