module github.com/weft-fabric/weft/services/gateway

go 1.26.7
