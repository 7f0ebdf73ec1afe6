package telemetry

import (
	_ "pgregory.net/rapid"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
	_ "github.com/weft-fabric/weft/libs/cell"
)
