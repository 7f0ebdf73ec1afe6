package launch

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/weft-fabric/weft/libs/bus"
)

// Limits of an unpacked bundle: an archive of 256 MiB may otherwise fill any disk.
const (
	maxUnpacked = 16 << 30
	maxFiles    = 1 << 20
)

// Fetch returns the file in dir that holds a bundle, fetching it if it is not there yet. Only bytes with the right
// digest ("b3-<hex>") ever get that name.
func Fetch(ctx context.Context, from bus.Objects, dir, digest string) (string, error) {
	if !strings.HasPrefix(digest, "b3-") || bus.CheckObjectName(digest) != nil {
		return "", fmt.Errorf("bundle %q is not a b3- digest", digest)
	}
	name := filepath.Join(dir, digest)
	if _, err := os.Stat(name); err == nil {
		return name, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("bundle: %w", err)
	}
	r, err := from.Get(ctx, digest)
	if err != nil {
		return "", fmt.Errorf("bundle: %w", err)
	}
	defer func() { _ = r.Close() }()
	tmp, err := os.CreateTemp(dir, ".fetch-")
	if err != nil {
		return "", fmt.Errorf("bundle: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	h := blake3.New()
	_, err = io.Copy(io.MultiWriter(tmp, h), r)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", fmt.Errorf("bundle %s: %w", digest, err)
	}
	if got := "b3-" + hex.EncodeToString(h.Sum(nil)); got != digest {
		return "", fmt.Errorf("bundle %s: its bytes are %s; submit again", digest, got)
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return "", fmt.Errorf("bundle: %w", err)
	}
	return name, nil
}

// Unpack extracts a gzip-compressed tar into dir. Nothing leaves dir, whatever the archive says: os.Root refuses every
// name that would, also through a link that the archive made before.
func Unpack(archive io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	defer func() { _ = root.Close() }()
	gz, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	limited := &io.LimitedReader{R: gz, N: maxUnpacked}
	tr := tar.NewReader(limited)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// The checksum of gzip comes after the last file.
			if _, err := io.Copy(io.Discard, limited); err != nil {
				return fmt.Errorf("unpack: %w", err)
			}
			return nil
		}
		if err == nil && n == maxFiles {
			err = fmt.Errorf("more than %d files", maxFiles)
		}
		if err == nil {
			err = extract(root, tr, h)
		}
		if err != nil {
			if limited.N <= 0 {
				err = fmt.Errorf("more than %d GiB", maxUnpacked>>30)
			}
			return fmt.Errorf("unpack: %w", err)
		}
	}
}

func extract(root *os.Root, r io.Reader, h *tar.Header) error {
	name := path.Clean(h.Name)
	if name == "." {
		return nil
	}
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive names %q, outside of its directory", h.Name)
	}
	if d := path.Dir(name); d != "." {
		if err := root.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		if path.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) {
			return fmt.Errorf("the link %q leads out of its directory, to %q", h.Name, h.Linkname)
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		mode := fs.FileMode(0o644)
		if h.FileInfo().Mode()&0o100 != 0 {
			mode = 0o755
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	default:
		return fmt.Errorf("%q is neither a file, a directory nor a link", h.Name)
	}
}
