package jobspec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// CellTenant owns what belongs to no tenant: requests and events of nodes, pools, queues above all, archives. No queue may
// lie under it.
const CellTenant = "cell"

var (
	tokenRE   = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	ulidRE    = regexp.MustCompile(`^[0-7][0-9a-hjkmnp-tv-z]{25}$`)
	envRE     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	labelRE   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$`)
	modelRE   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	migRE     = regexp.MustCompile(`^[1-7]g\.[1-9][0-9]{0,3}gb(\+me)?$`)
	digestRE  = regexp.MustCompile(`^b3-[0-9a-f]{64}$`)
	maxLevels = 8
)

// elsewhere gives the cure for words that other systems use.
var elsewhere = map[string]string{
	"activeDeadlineSeconds": "write spec.limit, such as 12h",
	"annotations":           "write metadata.labels",
	"args":                  "put the arguments into spec.command",
	"backoffLimit":          "write spec.restart.max",
	"completions":           "write spec.workers",
	"containers":            "write spec.command, spec.gpus, spec.cpu and spec.memory",
	"entrypoint":            "write spec.command",
	"namespace":             "write metadata.queue; its first part is the tenant",
	"nnodes":                "write spec.workers: the fabric finds the nodes",
	"nodeSelector":          "write spec.models or spec.topology",
	"nodes":                 "write spec.workers: the fabric finds the nodes",
	"nproc_per_node":        "write spec.workers: each worker is one rank",
	"parallelism":           "write spec.workers",
	"priorityClassName":     "write spec.priority",
	"replicas":              "write spec.workers",
	"requests":              "write spec.cpu, spec.memory and spec.gpus",
	"resources":             "write spec.cpu, spec.memory and spec.gpus",
	"script":                "write spec.command, such as [python3, train.py]",
	"template":              "write spec.command, spec.gpus, spec.cpu and spec.memory",
	"timeout":               "write spec.limit, such as 12h",
	"volumes":               "ship files by spec.files, and read data from paths that the nodes have",
}

// misplaced words are known, but in another place of the manifest.
var misplaced = map[string]string{
	"id": "metadata.id", "name": "metadata.name", "queue": "metadata.queue", "labels": "metadata.labels",
	"framework": "spec.framework", "workers": "spec.workers", "groups": "spec.groups", "gpus": "spec.gpus", "mig": "spec.mig",
	"models": "spec.models", "mixed": "spec.mixed", "cpu": "spec.cpu", "memory": "spec.memory", "topology": "spec.topology",
	"command": "spec.command", "files": "spec.files", "image": "spec.image", "env": "spec.env", "secrets": "spec.secrets",
	"checkpoint": "spec.checkpoint", "light": "spec.checkpoint.light", "full": "spec.checkpoint.full", "disaster": "spec.checkpoint.disaster",
	"grace": "spec.checkpoint.grace", "backoff": "spec.restart.backoff", "max_restarts": "spec.restart.max",
	"restart": "spec.restart", "hang_after": "spec.hang_after", "limit": "spec.limit", "estimate": "spec.estimate",
	"priority": "spec.priority", "preemptible": "spec.preemptible", "spot": "spec.spot", "resize": "spec.resize",
}

// notBuilt are the words of enumerations that are known, and refused for now.
var notBuilt = []string{"mpi", "live"}

// rankNames are set by the agent for each rank; a job must not.
var rankNames = []string{
	"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
	"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
}

// checkEnv refuses variables that the fabric sets, and known nonsense.
func (p *parser) checkEnv(name string) string {
	switch {
	case !envRE.MatchString(name):
		return "is not a variable name; use letters, digits and _, not beginning with a digit"
	case strings.HasPrefix(name, "WEFT_"), strings.HasPrefix(name, "PET_"):
		return "names beginning with WEFT_ and PET_ are set by the fabric; take it out, or choose another name"
	case slices.Contains(rankNames, name):
		return "is set by the fabric for each rank; take it out"
	case name == "NCCL_SOCKET_TIMEOUT_MS":
		return "NCCL has no such variable; pass timeout= to torch.distributed.init_process_group instead"
	case name == "NCCL_ALGO":
		return "pinning NCCL's algorithm makes most message sizes slower; take it out, NCCL chooses by size and topology"
	}
	return ""
}

// checkText refuses known nonsense inside commands and values.
func checkText(s string) string {
	low := strings.ToLower(s)
	switch {
	case strings.Contains(low, "rdma://"):
		return "PyTorch knows no rdma:// rendezvous; write env:// (NCCL finds RDMA by itself)"
	case strings.Contains(s, "NCCL_SOCKET_TIMEOUT_MS"):
		return "NCCL has no variable NCCL_SOCKET_TIMEOUT_MS; pass timeout= to torch.distributed.init_process_group instead"
	case strings.Contains(s, "NCCL_ALGO="):
		return "pinning NCCL_ALGO makes most message sizes slower; take it out, NCCL chooses by size and topology"
	}
	return ""
}

// CheckQueue says what is wrong with a queue path; empty if nothing.
func CheckQueue(path string) string {
	parts := strings.Split(path, "/")
	switch {
	case path == "":
		return "is empty; write a queue such as demo/vision (see: weft queues)"
	case len(parts) > maxLevels:
		return fmt.Sprintf("%q has %d levels; at most %d are allowed", clip(path), len(parts), maxLevels)
	}
	for _, t := range parts {
		if !tokenRE.MatchString(t) {
			return fmt.Sprintf("%q is not a queue path; write parts of 1-63 characters a-z 0-9 - with / between, such as demo/vision", clip(path))
		}
	}
	if parts[0] == CellTenant {
		return "the tenant " + CellTenant + " is the fabric's own; choose another"
	}
	return ""
}

// Tenant is the root of a queue path.
func Tenant(queue string) string {
	t, _, _ := strings.Cut(queue, "/")
	return t
}

// IsID says whether s is a job id: a lower-case ULID.
func IsID(s string) bool { return ulidRE.MatchString(s) }

// IsDigest says whether s is the digest of a bundle.
func IsDigest(s string) bool { return digestRE.MatchString(s) }

// IsToken says whether s may be a tenant, a node or a job's name.
func IsToken(s string) bool { return tokenRE.MatchString(s) }

// MaxGrace is the longest grace under a fence: half of it, so that a cut-off node has ended its ranks before their
// replacement starts.
func MaxGrace(fence time.Duration) time.Duration { return fence / 2 }

// CheckGrace refuses a grace longer than the fence of the cell allows.
func (m *Manifest) CheckGrace(fence time.Duration) error {
	if g := time.Duration(m.Spec.GetCheckpoint().GetGraceNs()); fence > 0 && g > MaxGrace(fence) {
		return m.Errorf("spec.checkpoint.grace", "%s is longer than half the fence of this fabric; write at most %s",
			formatDuration(int64(g)), formatDuration(int64(MaxGrace(fence))))
	}
	return nil
}
