package nodeagent

import (
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/shell"
)

func verifyPart(string) error { return nil }

func scanParts(Config) shell.Scan {
	return func([]shell.SaveJob) ([]*weftv1.PartRef, error) { return nil, nil }
}
