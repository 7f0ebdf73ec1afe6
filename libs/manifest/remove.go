package manifest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

// trash is where a save goes before it is deleted, so that it vanishes at one instant and never shows half.
const trash = ".trash"

// Remove deletes a save of a job below a tier's root. That it isn't there is no error; what an earlier call left in the
// trash goes, too. It never leaves the job's own directory, whatever links are in it.
func Remove(root string, j Job, save string) error {
	if _, err := saveid.Parse(save); err != nil {
		return err
	}
	return inJob(root, j, func(r *os.Root) error {
		if err := r.Mkdir(trash, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := r.RemoveAll(trash + "/" + save); err != nil {
			return err
		}
		if err := r.Rename(save, trash+"/"+save); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return r.RemoveAll(trash)
	})
}

// inJob works in a job's directory, which was reached without following a link.
func inJob(root string, j Job, work func(*os.Root) error) error {
	if !saveid.Token(j.Tenant) || !saveid.Token(j.ID) {
		return fmt.Errorf("tenant %.70q or job %.70q is no proper name", j.Tenant, j.ID)
	}
	base, err := openDir(root)
	if err != nil {
		return err
	}
	defer base.close()
	d, err := base.sub(j.Tenant, j.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.close()
	r, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", d.f.Fd())) // the directory that is open, not what its path now names
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	return work(r)
}

// Reachable says whether a job has a directory below a tier's root as seen from here.
func Reachable(root string, j Job) bool {
	base, err := openDir(root)
	if err != nil {
		return false
	}
	defer base.close()
	d, err := base.sub(j.Tenant, j.ID)
	if err != nil {
		return false
	}
	d.close()
	return true
}
