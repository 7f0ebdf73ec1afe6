module github.com/weft-fabric/weft/services/telemetry

go 1.26.7
