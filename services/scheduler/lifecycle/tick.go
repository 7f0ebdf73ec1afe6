package lifecycle

import (
	"fmt"
	"time"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// tickBatch bounds what one Tick does, in deadlines and in facts, so that its commit stays small: a thousand nodes may be
// lost at one instant. The next deadline is then still due.
const tickBatch = 1000

// tick does what is due.
func (d *decision) tick() {
	var due []cell.Deadline
	for x := range d.s.Deadlines() {
		if x.At > d.now || len(due) == tickBatch {
			break
		}
		due = append(due, x)
	}
	for _, x := range due {
		if len(d.facts) >= tickBatch {
			break
		}
		switch x.Kind {
		case cell.DueJob:
			d.jobDue(x.Name)
		case cell.DueNode:
			d.lose(x.Name)
		case cell.DueClaim:
			d.void(x.Name, "it expired")
		}
	}
	d.archive()
}

func (d *decision) jobDue(id string) {
	j := d.s.Job(id)
	switch j.Phase {
	case cell.Backoff:
		d.emit(weftv1.Fact_builder{JobRequeued: weftv1.JobRequeued_builder{Job: &id, Degraded: some(j.Degraded)}.Build()})
	case cell.Running:
		limit := time.Duration(j.Spec.GetLimitNs())
		d.stop(id, cause(weftv1.CauseKind_CAUSE_KIND_LIMIT, "", fmt.Sprintf("it ran longer than its limit of %s", limit)), "")
	}
}

func (d *decision) archive() {
	var ids []string
	for at, id := range d.s.Endings() {
		if at+int64(d.p.ArchiveAfter) > d.now || len(ids) == d.p.ArchiveBatch {
			break
		}
		ids = append(ids, id)
	}
	if len(ids) > 0 {
		d.emit(weftv1.Fact_builder{JobsArchived: weftv1.JobsArchived_builder{Jobs: ids}.Build()})
	}
}

// NextDeadline is when Tick next has something to do, Unix ns; 0 = never, as things are.
func NextDeadline(s *cell.State, p Policy) int64 {
	next := int64(0)
	for x := range s.Deadlines() {
		next = x.At
		break
	}
	for at := range s.Endings() {
		if at += int64(p.ArchiveAfter); next == 0 || at < next {
			next = at
		}
		break
	}
	return next
}
