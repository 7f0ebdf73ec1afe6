// Package launch prepares what an attempt's ranks need on this node: their environment, their working directory from
// the job's bundle, free ports, and the bytes of the save to resume from. It starts nothing.
package launch

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// Node is what a launch needs to know of the machine.
type Node struct {
	Name      string
	Address   string
	Devices   []*weftv1.Device // in the order that placements index
	Simulated bool
	SavesDir  string
	OutputDir string
	PythonDir string // has weft.py
}

// Dirs of one attempt on this node.
type Dirs struct {
	Work string // working directory
	Logs string // ranks' output
}

// SaveDir is where a job's saves are.
func (n Node) SaveDir(tenant, job string) string { return filepath.Join(n.SavesDir, tenant, job) }

// JobOutput is WEFT_OUTPUT_DIR, which survives the attempts.
func (n Node) JobOutput(tenant, job string) string { return filepath.Join(n.OutputDir, tenant, job) }

// passed are the variables of the agent's own environment that ranks get. All others stay: one may be a credential.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME",
	"VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE",
}

var passedPrefixes = []string{"LC_", "CONDA_", "PYENV_"}

// env is a set of variables; a later one replaces an earlier one of its name.
type env struct{ kv map[string]string }

func (e *env) set(k string, v string) { e.kv[k] = v }
func (e *env) num(k string, v int)    { e.kv[k] = strconv.Itoa(v) }
func (e *env) u32(k string, v uint32) { e.kv[k] = strconv.FormatUint(uint64(v), 10) }
func (e *env) seconds(k string, ns int64) {
	e.kv[k] = strconv.FormatFloat(float64(ns)/1e9, 'f', -1, 64)
}

func (e *env) list() []string {
	out := make([]string, 0, len(e.kv))
	for k, v := range e.kv {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// Ranks returns the processes of this node's part of an attempt. host is the agent's own environment, resume the
// directory of the save to restore from, marker the entry by which every process of the run can be found.
func Ranks(n Node, a *weftv1.AssignedAttempt, spec *weftv1.JobSpec, d Dirs, host []string, resume, marker string) ([]shim.Rank, error) {
	type place struct {
		p     *weftv1.Placement
		group *weftv1.Group
		k     int // devices per rank
	}
	var places []place
	local := 0
	for _, p := range a.GetPlacements() {
		if int(p.GetGroup()) >= len(spec.GetGroups()) {
			return nil, fmt.Errorf("placement names group %d of a job with %d", p.GetGroup(), len(spec.GetGroups()))
		}
		g := spec.GetGroups()[p.GetGroup()]
		if len(g.GetCommand()) == 0 {
			return nil, fmt.Errorf("group %s has no command", g.GetName())
		}
		count := int(p.GetCount())
		if count == 0 || len(p.GetDevices())%count != 0 {
			return nil, fmt.Errorf("placement of %d devices on %d ranks", len(p.GetDevices()), count)
		}
		for _, i := range p.GetDevices() {
			if int(i) >= len(n.Devices) {
				return nil, fmt.Errorf("placement names device %d of %d: the inventory changed", i, len(n.Devices))
			}
		}
		places = append(places, place{p, g, len(p.GetDevices()) / count})
		local += count
	}
	peers, err := newPeers(a, spec)
	if err != nil {
		return nil, err
	}
	var ranks []shim.Rank
	for _, pl := range places {
		for i := range int(pl.p.GetCount()) {
			rank := pl.p.GetFirstRank() + uint32(i)
			e := &env{map[string]string{}}
			hostEnv(e, host)
			frameworkDefaults(e, n, spec, pl.group)
			for _, kv := range pl.group.GetEnv() {
				e.set(kv.GetKey(), kv.GetValue())
			}
			devices(e, n, pl.p, pl.k, i, isTorchrun(pl.group.GetCommand()))
			if err := rendezvous(e, a, spec, pl.group, pl.p, peers, rank, len(ranks), local); err != nil {
				return nil, err
			}
			identity(e, n, a, spec, pl.group, d, rank, resume, marker)
			base := "rank-" + strconv.FormatUint(uint64(rank), 10)
			ranks = append(ranks, shim.Rank{
				Rank: rank, Argv: pl.group.GetCommand(), Env: e.list(), Dir: d.Work,
				Stdout: filepath.Join(d.Logs, base+".out"), Stderr: filepath.Join(d.Logs, base+".err"),
			})
		}
	}
	return ranks, nil
}

func hostEnv(e *env, host []string) {
	for _, kv := range host {
		k, v, _ := strings.Cut(kv, "=")
		if slices.Contains(passed, k) || slices.ContainsFunc(passedPrefixes, func(p string) bool { return strings.HasPrefix(k, p) }) {
			e.set(k, v)
		}
	}
}

// frameworkDefaults are settings that a job may override.
func frameworkDefaults(e *env, n Node, spec *weftv1.JobSpec, g *weftv1.Group) {
	e.set("PYTHONUNBUFFERED", "1") // a killed rank's last lines are the interesting ones
	if spec.GetFramework() == weftv1.Framework_FRAMEWORK_PYTORCH {
		// Each of several ranks would otherwise start one thread per core of the machine.
		e.num("OMP_NUM_THREADS", max(1, int(g.GetCpuMilli()/1000)))
		// Gloo resolves the host's own name, which may lead to another interface, or nowhere.
		if i := interfaceOf(n.Address); i != "" {
			e.set("GLOO_SOCKET_IFNAME", i)
		}
	}
}

// interfaceOf is the network interface that has the address; empty if none has.
func interfaceOf(address string) string {
	ip := net.ParseIP(address)
	ifs, err := net.Interfaces()
	if ip == nil || err != nil {
		return ""
	}
	for _, i := range ifs {
		as, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range as {
			if n, ok := a.(*net.IPNet); ok && (n.IP.Equal(ip) || ip.IsLoopback() && n.Contains(ip)) {
				return i.Name
			}
		}
	}
	return ""
}

// devices makes accelerators visible by UUID. With one device a rank, all of the attempt's on this node are visible in
// rank order, so that scripts which choose device LOCAL_RANK work; otherwise each rank sees its own, numbered from 0.
func devices(e *env, n Node, p *weftv1.Placement, k, i int, torchrun bool) {
	e.set("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	uuids := func(ds []uint32) string {
		var out []string
		for _, d := range ds {
			out = append(out, n.Devices[d].GetUuid())
		}
		return strings.Join(out, ",")
	}
	mine := p.GetDevices()[i*k : (i+1)*k]
	e.set("WEFT_DEVICES", uuids(mine)) // this rank's own, also where they are simulated
	if k == 1 && !torchrun {
		mine = p.GetDevices()
	}
	if n.Simulated {
		mine = nil
	}
	e.set("CUDA_VISIBLE_DEVICES", uuids(mine))
}

// isTorchrun says whether a rank is itself a launcher, which numbers the workers that it starts.
func isTorchrun(command []string) bool {
	if path.Base(command[0]) == "torchrun" {
		return true
	}
	for i, w := range command[:len(command)-1] {
		if w == "-m" && (command[i+1] == "torch.distributed.run" || command[i+1] == "torch.distributed.launch") {
			return true
		}
	}
	return false
}

func rendezvous(e *env, a *weftv1.AssignedAttempt, spec *weftv1.JobSpec, g *weftv1.Group, p *weftv1.Placement, ps *peers, rank uint32, local, localSize int) error {
	nproc := 1
	if c := p.GetCount(); c > 0 && len(p.GetDevices()) > 0 {
		nproc = len(p.GetDevices()) / int(c)
	}
	torchrun := isTorchrun(g.GetCommand())
	if spec.GetFramework() == weftv1.Framework_FRAMEWORK_PYTORCH || torchrun {
		e.u32("PET_NNODES", a.GetSize())
		e.u32("PET_NODE_RANK", rank)
		e.num("PET_NPROC_PER_NODE", nproc)
		e.set("PET_MASTER_ADDR", a.GetMasterAddress())
		e.u32("PET_MASTER_PORT", a.GetMasterPort())
	}
	e.set("MASTER_ADDR", a.GetMasterAddress())
	e.u32("MASTER_PORT", a.GetMasterPort())
	if !torchrun {
		e.u32("RANK", rank)
		e.u32("WORLD_SIZE", a.GetSize())
		e.num("LOCAL_RANK", local)
		e.num("LOCAL_WORLD_SIZE", localSize)
		e.num("GROUP_RANK", ps.node(rank))
	}
	switch spec.GetFramework() {
	case weftv1.Framework_FRAMEWORK_TENSORFLOW:
		s, err := ps.tfConfig(g.GetName(), p.GetGroup(), rank)
		if err != nil {
			return err
		}
		e.set("TF_CONFIG", s)
	case weftv1.Framework_FRAMEWORK_MPI:
		// As Open MPI's own launcher would say it.
		e.u32("OMPI_COMM_WORLD_RANK", rank)
		e.u32("OMPI_COMM_WORLD_SIZE", a.GetSize())
		e.num("OMPI_COMM_WORLD_LOCAL_RANK", local)
		e.num("OMPI_COMM_WORLD_LOCAL_SIZE", localSize)
	}
	return nil
}

func identity(e *env, n Node, a *weftv1.AssignedAttempt, spec *weftv1.JobSpec, g *weftv1.Group, d Dirs, rank uint32, resume, marker string) {
	e.set("WEFT_JOB", a.GetJob())
	e.set("WEFT_JOB_NAME", a.GetName())
	e.set("WEFT_QUEUE", a.GetQueue())
	e.set("WEFT_TENANT", a.GetTenant())
	e.u32("WEFT_ATTEMPT", a.GetAttempt())
	e.u32("WEFT_RESTARTS", a.GetRestarts())
	if !isTorchrun(g.GetCommand()) { // its workers have ranks of their own
		e.u32("WEFT_RANK", rank)
		e.u32("WEFT_WORLD_SIZE", a.GetSize())
	}
	e.set("WEFT_GROUP", g.GetName())
	e.set("WEFT_NODE", n.Name)
	e.set("WEFT_CHECKPOINT_DIR", n.SaveDir(a.GetTenant(), a.GetJob()))
	e.set("WEFT_RESUME_FROM", resume)
	e.set("WEFT_OUTPUT_DIR", n.JobOutput(a.GetTenant(), a.GetJob()))
	c := spec.GetCheckpoint()
	e.seconds("WEFT_LIGHT_EVERY", c.GetLightNs())
	e.seconds("WEFT_FULL_EVERY", c.GetFullNs())
	e.seconds("WEFT_GRACE", c.GetGraceNs())
	e.set("WEFT_BEAT_FILE", filepath.Join(filepath.Dir(d.Work), shim.FileBeat(rank)))
	if n.PythonDir != "" {
		pp := n.PythonDir
		if old := e.kv["PYTHONPATH"]; old != "" {
			pp += string(os.PathListSeparator) + old
		}
		e.set("PYTHONPATH", pp)
	}
	k, v, _ := strings.Cut(marker, "=")
	e.set(k, v)
}

// peers knows where every rank of the attempt listens.
type peers struct {
	ranges []*weftv1.RankRange
	names  []string // of groups
}

func newPeers(a *weftv1.AssignedAttempt, spec *weftv1.JobSpec) (*peers, error) {
	p := &peers{ranges: slices.Clone(a.GetPeers())}
	for _, g := range spec.GetGroups() {
		p.names = append(p.names, g.GetName())
	}
	slices.SortFunc(p.ranges, func(a, b *weftv1.RankRange) int { return int(a.GetFirst()) - int(b.GetFirst()) })
	for _, r := range p.ranges {
		if int(r.GetGroup()) >= len(p.names) {
			return nil, fmt.Errorf("peers name group %d of a job with %d", r.GetGroup(), len(p.names))
		}
	}
	return p, nil
}

// node numbers the places of the attempt in rank order; a node with ranks of two groups is two.
func (p *peers) node(rank uint32) int {
	for i, r := range p.ranges {
		if rank >= r.GetFirst() && rank < r.GetFirst()+r.GetCount() {
			return i
		}
	}
	return 0
}

func (p *peers) tfConfig(group string, index, rank uint32) (string, error) {
	cluster := map[string][]string{}
	first, found := uint32(0), false
	for _, r := range p.ranges {
		if r.GetGroup() == index && !found {
			first, found = r.GetFirst(), true
		}
		for i := range r.GetCount() {
			name := p.names[r.GetGroup()]
			cluster[name] = append(cluster[name], net.JoinHostPort(r.GetAddress(), strconv.Itoa(int(r.GetPortBase()+i))))
		}
	}
	if !found {
		return "", fmt.Errorf("the assignment has no addresses for group %s, which TF_CONFIG needs", group)
	}
	b, err := json.Marshal(map[string]any{
		"cluster": cluster,
		"task":    map[string]any{"type": group, "index": rank - first},
	})
	return string(b), err
}
