package jobspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestParseQueues(t *testing.T) {
	got, err := ParseQueues([]byte(`
queues:
  - {name: acme/vision, limit: {gpu: 8, memory: 256Gi}, weight: 0}
  - {name: acme, quota: {gpu: 16, cpu: 500m}, weight: 2, lend: {gpu: 4}, priority: 3}
  - {name: old, removed: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []*weftv1.QueueSet{
		weftv1.QueueSet_builder{
			Queue: new("acme"), Quota: weftv1.Amounts_builder{GpuMilli: new(int64(16000)), CpuMilli: new(int64(500))}.Build(), Weight: new(int64(2)),
			Lend: weftv1.Limits_builder{GpuMilli: new(int64(4000))}.Build(), Priority: new(int32(3)),
		}.Build(),
		weftv1.QueueSet_builder{Queue: new("old"), Weight: new(int64(1)), Removed: new(true)}.Build(),
		weftv1.QueueSet_builder{
			Queue: new("acme/vision"), Limit: weftv1.Limits_builder{GpuMilli: new(int64(8000)), MemoryBytes: new(int64(256 << 30))}.Build(), Weight: new(int64(0)),
		}.Build(),
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func TestWrongQueues(t *testing.T) {
	for text, want := range map[string]string{
		"queues: []":                                            "queues (line 1): is empty; write one entry a queue, such as - {name: acme, weight: 1}",
		"queue: [{name: a}]":                                    "queue (line 1): unknown field; did you mean queues?",
		"queues: [{weight: 1}]":                                 "queues[0].name (line 1): is missing; write a queue path such as acme/vision",
		"queues: [{name: A}]":                                   `queues[0].name (line 1): "A" is not a queue path; write parts of 1-63 characters a-z 0-9 - with / between, such as demo/vision`,
		"queues: [{name: a}, {name: a}]":                        `queues[1].name (line 1): "a" appears twice; keep one of them`,
		"queues: [{name: a, wieght: 1}]":                        "queues[0].wieght (line 1): unknown field; did you mean weight?",
		"queues: [{name: a, weight: -1}]":                       "queues[0].weight (line 1): -1 is out of range; write a whole number from 0 to 1000000",
		"queues: [{name: a, quota: 4}]":                         "queues[0].quota (line 1): must be a mapping of fields, not a single value; write them as 'name: value' lines below it",
		"queues: [{name: cell}]":                                "queues[0].name (line 1): the tenant cell is the fabric's own; choose another",
		"kind: Job\nqueues: [{name: a}]":                        `kind (line 1): "Job" is no queues file; write kind: Queues, or submit a job by: weft submit FILE`,
		"queues: [{name: a, limit: {gpu: 1}, quota: {gpu: 2}}]": "queues[0].quota.gpu (line 1): is above the queue's limit; lower the quota or raise limit.gpu",
		"queues: [{name: a, quota: {gpus: 2}}]":                 "queues[0].quota.gpus (line 1): unknown field; did you mean gpu?",
		"queues: [{name: a, quota: {gpu: -2}}]":                 "queues[0].quota.gpu (line 1): -2 is negative; write an amount such as 16",
	} {
		if _, err := ParseQueues([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}
