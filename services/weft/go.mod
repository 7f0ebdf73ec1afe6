module github.com/weft-fabric/weft/services/weft

go 1.26.7
