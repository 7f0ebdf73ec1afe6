module github.com/weft-fabric/weft/services/checkpoint

go 1.26.7
