package ledger

import weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"

// Chain follows records without folding them, for readers that need the commits alone. The zero value stands before the
// first record. It is not safe for concurrent use.
type Chain struct{ at Position }

// Next returns the commit of a record and moves on, or ok = false if the record is void: it does not continue the chain,
// and every reader passes over it. The first record after Reset counts if it can be decoded.
func (c *Chain) Next(rec Record) (commit *weftv1.Commit, ok bool) {
	if c.at.Seq == 0 && rec.Seq > 1 {
		m, err := Decode(rec.Data)
		if err != nil {
			return nil, false
		}
		commit = m
	} else {
		m, _, err := check(c.at, rec)
		if err != nil {
			return nil, false
		}
		commit = m
	}
	c.at = Position{Seq: rec.Seq, Term: commit.GetTerm(), Hash: Hash(rec.Data), TimeNS: commit.GetTimeNs()}
	return commit, true
}

// Reset forgets where the chain stands: what comes next is known to be on it.
func (c *Chain) Reset() { c.at = Position{} }
