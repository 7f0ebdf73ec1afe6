package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// dir is an open directory. Everything below it is opened by one name at a time and never through a symbolic link, so
// whoever may write there can't lead the reader elsewhere, not even between a check and its use.
type dir struct {
	f    *os.File
	path string // for messages
}

// errTooMuch: a directory holds more than there may be. Looking again won't help.
var errTooMuch = errors.New("it holds too much")

// errNotPlain: a link, a pipe, a device or something else in place of a file or a directory.
var errNotPlain = errors.New("neither a regular file nor a directory")

// openDir opens a directory that the caller trusts to be where it is.
func openDir(path string) (*dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &dir{os.NewFile(uintptr(fd), path), path}, nil
}

func (d *dir) close() { _ = d.f.Close() }

// at opens one entry without following it. A pipe doesn't block, and only what has the wanted type is returned.
func (d *dir) at(name string, flags int) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	path := filepath.Join(d.path, name)
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return nil, st, &fs.PathError{Op: "open", Path: path, Err: errNotPlain}
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.f.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	})
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENXIO) {
			err = errNotPlain
		}
		return nil, st, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, st, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	want := uint32(unix.S_IFREG)
	if flags&unix.O_DIRECTORY != 0 {
		want = unix.S_IFDIR
	}
	if st.Mode&unix.S_IFMT != want {
		_ = unix.Close(fd)
		return nil, st, &fs.PathError{Op: "open", Path: path, Err: errNotPlain}
	}
	return os.NewFile(uintptr(fd), path), st, nil
}

func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// sub opens the directory at a path of several names.
func (d *dir) sub(names ...string) (*dir, error) {
	at := d
	for _, name := range names {
		f, _, err := at.at(name, unix.O_DIRECTORY)
		if at != d {
			at.close()
		}
		if err != nil {
			return nil, err
		}
		at = &dir{f, f.Name()}
	}
	if at == d {
		return nil, &fs.PathError{Op: "open", Path: d.path, Err: errors.New("no name given")}
	}
	return at, nil
}

// file opens a regular file at a path with slashes and returns its size.
func (d *dir) file(name string) (*os.File, int64, error) {
	at := d
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		sub, err := d.sub(strings.Split(name[:i], "/")...)
		if err != nil {
			return nil, 0, err
		}
		defer sub.close()
		at, name = sub, name[i+1:]
	}
	f, st, err := at.at(name, 0)
	return f, st.Size, err
}

// names lists the entries, sorted; it fails if there are more than limit.
func (d *dir) names(limit int) ([]string, error) {
	if _, err := d.f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := d.f.Readdirnames(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > limit {
		return nil, fmt.Errorf("%w: %s has more than %d entries", errTooMuch, d.path, limit)
	}
	slices.Sort(names)
	return names, nil
}

// walk calls each with every regular file below d, by its path with slashes. It fails on anything that is neither file nor
// directory, below depth directories, and beyond left files; names that NFS leaves behind for deleted files are passed over.
func (d *dir) walk(prefix string, depth int, left *int, each func(name string) error) error {
	if depth == 0 {
		return fmt.Errorf("%w: directories are nested too deep at %.100q", errTooMuch, prefix)
	}
	names, err := d.names(*left)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n, ".nfs") {
			continue
		}
		if *left--; *left < 0 {
			return fmt.Errorf("%w: too many files and directories", errTooMuch)
		}
		f, _, err := d.at(n, unix.O_DIRECTORY)
		if err == nil {
			s := &dir{f, f.Name()}
			err = s.walk(prefix+n+"/", depth-1, left, each)
			s.close()
		} else if errors.Is(err, errNotPlain) {
			if f, _, err = d.at(n, 0); err == nil {
				_ = f.Close()
				err = each(prefix + n)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
