// Package bundle packs a directory into the archive that travels with a job: a gzip-compressed tar, the same bytes for
// the same files on any machine, named by its BLAKE3 digest. It never unpacks one; that is the agent's work.
package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/zeebo/blake3"
)

// MaxBytes is the largest archive that the fabric accepts.
const MaxBytes = 256 << 20

// IgnoreFile lists patterns of files that stay at home, one a line, as path.Match reads them; a pattern without a slash
// matches a name in any directory, one with a trailing slash only directories, # begins a comment.
const IgnoreFile = ".weftignore"

// builtin patterns are never shipped.
var builtin = []string{".git/", "__pycache__/", ".weft/", "*.pyc"}

// Bundle is a packed directory.
type Bundle struct {
	Digest string // b3-<hex> of Data
	Data   []byte
	Files  int
}

// Pack archives dir. Symbolic links that leave dir, and anything that is neither file, directory nor link, are errors.
func Pack(dir string) (*Bundle, error) {
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no directory %s; write files: . for the one that holds the manifest", dir)
	case err != nil:
		return nil, fmt.Errorf("bundle: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("%s is not a directory; write files: . for the one that holds the manifest", dir)
	}
	rules, err := readIgnore(filepath.Join(dir, IgnoreFile))
	if err != nil {
		return nil, err
	}
	names, err := list(dir, append(rules, builtin...))
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	gz, _ := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	tw := tar.NewWriter(gz)
	for _, name := range names {
		if err := add(tw, dir, name); err != nil {
			return nil, fmt.Errorf("bundle %s: %w", name, err)
		}
		if buf.Len() > MaxBytes {
			return nil, fmt.Errorf("bundle: %s packs to more than %d MiB; list what the job does not need in %s, or read the data from storage", dir, MaxBytes>>20, IgnoreFile)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	sum := blake3.Sum256(buf.Bytes())
	return &Bundle{Digest: "b3-" + hex.EncodeToString(sum[:]), Data: buf.Bytes(), Files: len(names)}, nil
}

func list(dir string, rules []string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return err
		}
		rel = filepath.ToSlash(rel)
		if ignored(rel, d.IsDir(), rules) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.IsDir() {
			names = append(names, rel)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	sort.Strings(names)
	return names, nil
}

// add writes one file with neither owner nor time, so that equal content gives equal bytes.
func add(tw *tar.Writer, dir, name string) error {
	full := filepath.Join(dir, filepath.FromSlash(name))
	info, err := os.Lstat(full)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	switch {
	case info.Mode().IsRegular():
		f, err := os.Open(full)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size(), Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err = io.Copy(tw, f)
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(full)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) || strings.HasPrefix(path.Join(path.Dir(name), filepath.ToSlash(target)), "..") {
			return fmt.Errorf("the link leads out of the directory to %s; copy the file in, or list the link in %s", target, IgnoreFile)
		}
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: filepath.ToSlash(target), Mode: 0o777, Format: tar.FormatPAX})
	default:
		return fmt.Errorf("neither a file nor a link; list it in %s", IgnoreFile)
	}
}

func readIgnore(file string) ([]string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	defer func() { _ = f.Close() }()
	var rules []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := path.Match(line, "x"); err != nil {
			return nil, fmt.Errorf("%s: pattern %q: %w", file, line, err)
		}
		rules = append(rules, line)
	}
	return rules, sc.Err()
}

func ignored(rel string, isDir bool, rules []string) bool {
	for _, r := range rules {
		if strings.HasSuffix(r, "/") {
			if !isDir {
				continue
			}
			r = strings.TrimSuffix(r, "/")
		}
		r = strings.TrimPrefix(r, "./")
		name := rel
		if !strings.Contains(strings.TrimPrefix(r, "/"), "/") && !strings.HasPrefix(r, "/") {
			name = path.Base(rel)
		}
		if ok, _ := path.Match(strings.TrimPrefix(r, "/"), name); ok {
			return true
		}
	}
	return false
}
