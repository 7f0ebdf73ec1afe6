package manifest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

// CRC64NVME is the table of the CRC that object stores check: polynomial 0xad93d23594c93659, reflected.
var CRC64NVME = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// Bounds of one part; weft.py lets nothing pass that lies beyond them.
const (
	readBuffer = 1 << 20
	maxDepth   = 16                    // directories, its own among them
	maxWalk    = 2*saveid.MaxFiles + 1 // files, as many directories, and part.json
)

// errCancelled ends a read early.
var errCancelled = errors.New("verification cancelled")

// Verify reads every byte of the part in dir back and compares sizes and SHA-256 with what its rank wrote down, looks
// for files that are not listed, and checks the structure of formats that it knows. dir is an absolute path that ends in
// <tenant>/<job>/<save>/rank-<r>. The result carries CRC64NVME and BLAKE3 of every file. A *Corrupt is final; any other
// error, the end of ctx among them, says nothing about the part.
func Verify(ctx context.Context, dir string) (*weftv1.PartRef, error) {
	ref, _, err := VerifyOrigin(ctx, dir)
	return ref, err
}

// VerifyOrigin is Verify that also says on which node the part's rank ran, as the rank itself wrote.
func VerifyOrigin(ctx context.Context, dir string) (ref *weftv1.PartRef, node string, err error) {
	ref, p, d, err := read(dir)
	if err != nil {
		return nil, "", err
	}
	defer d.close()
	if err := verify(ctx, ref, p, d); err != nil {
		return nil, "", err
	}
	return ref, p.Node, nil
}

// verify reads everything in d and completes ref.
func verify(ctx context.Context, ref *weftv1.PartRef, p *part, d *dir) error {
	corrupt := func(format string, a ...any) error {
		return &Corrupt{Path: ref.GetPath(), Reason: fmt.Sprintf(format, a...)}
	}
	listed := make([]string, len(p.Files))
	for i, f := range p.Files {
		listed[i] = f.Name
	}
	left := maxWalk
	err := d.walk("", maxDepth, &left, func(name string) error {
		if _, ok := slices.BinarySearch(listed, name); !ok && name != PartFile {
			return corrupt("file %.200q is not listed in part.json", name)
		}
		return nil
	})
	switch {
	case errors.Is(err, errTooMuch), errors.Is(err, errNotPlain):
		return corrupt("%v", err)
	case err != nil:
		return err
	}
	formats := map[string]bool{}
	buf := make([]byte, readBuffer)
	for i, f := range p.Files {
		format, err := verifyFile(ctx, d, f, ref.GetFiles()[i], buf)
		var bad *badFile
		switch {
		case errors.As(err, &bad):
			return corrupt("%s: %s", f.Name, bad.reason)
		case err != nil:
			return fmt.Errorf("part %s: %s: %w", ref.GetPath(), f.Name, err)
		}
		formats[format] = true
	}
	ref.SetFormat(join(formats))
	return nil
}

func join(set map[string]bool) string {
	var out []string
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// badFile: the file is definitely not what was saved.
type badFile struct{ reason string }

func (e *badFile) Error() string { return e.reason }

// verifyFile hashes one file in one pass and fills in what it found.
func verifyFile(ctx context.Context, d *dir, want file, into *weftv1.SavedFile, buf []byte) (format string, err error) {
	f, size, err := d.file(want.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", &badFile{"it is missing"}
	case errors.Is(err, errNotPlain):
		return "", &badFile{"it is no regular file"}
	case err != nil:
		return "", err
	}
	defer func() { _ = f.Close() }()
	if size != want.Bytes {
		return "", &badFile{fmt.Sprintf("it has %d bytes, %d were saved", size, want.Bytes)}
	}
	sha, crc, b3 := sha256.New(), crc64.New(CRC64NVME), blake3.New()
	// One byte more than there should be, so that a file which grows is noticed.
	n, err := io.CopyBuffer(io.MultiWriter(sha, crc, b3), readerOnly{ctx, io.LimitReader(f, want.Bytes+1)}, buf)
	if err != nil {
		return "", err
	}
	if n != want.Bytes {
		return "", &badFile{fmt.Sprintf("%d bytes were read, %d were saved", n, want.Bytes)}
	}
	if got := hex.EncodeToString(sha.Sum(nil)); got != want.SHA256 {
		return "", &badFile{fmt.Sprintf("its SHA-256 is %s, %s was saved", got, want.SHA256)}
	}
	into.SetCrc64Nvme(crc.Sum64())
	into.SetBlake3(hex.EncodeToString(b3.Sum(nil)))
	return structure(ctx, f, want.Name, size)
}

// readerOnly keeps CopyBuffer at its buffer, and stops between reads when ctx ends.
type readerOnly struct {
	ctx context.Context
	r   io.Reader
}

func (r readerOnly) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, errCancelled
	}
	return r.r.Read(b)
}

// read opens the part in path and reads its part.json; the caller closes d.
func read(path string) (ref *weftv1.PartRef, p *part, d *dir, err error) {
	root, rel, err := split(path)
	if err != nil {
		return nil, nil, nil, err
	}
	base, err := openDir(root)
	if err != nil {
		return nil, nil, nil, err
	}
	defer base.close()
	return readAt(base, rel)
}

// split cuts a part's directory into the tier's root and the four names below it.
func split(path string) (root string, rel []string, err error) {
	root = filepath.Clean(path)
	for range 4 {
		rel = append(rel, filepath.Base(root))
		root = filepath.Dir(root)
	}
	slices.Reverse(rel)
	if !filepath.IsAbs(path) || root == rel[0] {
		return "", nil, fmt.Errorf("%q is no absolute path that ends in tenant/job/save/rank", path)
	}
	return root, rel, nil
}

// readAt reads the part.json of the part at rel = tenant, job, save, rank below a tier's root.
func readAt(root *dir, rel []string) (*weftv1.PartRef, *part, *dir, error) {
	at := strings.Join(rel, "/")
	d, err := root.sub(rel...)
	if err != nil {
		if errors.Is(err, errNotPlain) {
			err = &Corrupt{Path: at, Reason: err.Error()}
		}
		return nil, nil, nil, err
	}
	ref, p, err := readManifest(d, at)
	if err != nil {
		d.close()
		return nil, nil, nil, err
	}
	return ref, p, d, nil
}

func readManifest(d *dir, at string) (*weftv1.PartRef, *part, error) {
	corrupt := func(format string, a ...any) error { return &Corrupt{Path: at, Reason: fmt.Sprintf(format, a...)} }
	f, size, err := d.file(PartFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, corrupt("it has no %s", PartFile)
	case errors.Is(err, errNotPlain):
		return nil, nil, corrupt("%s is no regular file", PartFile)
	case err != nil:
		return nil, nil, err
	}
	b, err := readSmall(f, size)
	if err != nil {
		return nil, nil, err
	}
	p, ref, err := parse(b)
	if err != nil {
		return nil, nil, corrupt("%s: %v", PartFile, err)
	}
	if ref.GetPath() != at {
		return nil, nil, corrupt("%s belongs to %s", PartFile, ref.GetPath())
	}
	sum := blake3.Sum256(b)
	ref.SetManifestHash(hex.EncodeToString(sum[:]))
	ref.SetFormat("unknown")
	return ref, p, nil
}

// readSmall reads a file of which at most maxPartFile bytes count, and closes it.
func readSmall(f *os.File, size int64) ([]byte, error) {
	defer func() { _ = f.Close() }()
	if size > maxPartFile { // parse refuses it by its size; there is no need to read more
		return make([]byte, maxPartFile+1), nil
	}
	return io.ReadAll(io.LimitReader(f, maxPartFile+1))
}
