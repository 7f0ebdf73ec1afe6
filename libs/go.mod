module github.com/weft-fabric/weft/libs

go 1.26.7
