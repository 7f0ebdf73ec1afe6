module github.com/weft-fabric/weft/proto

go 1.26.7
