module github.com/weft-fabric/weft/services/allocator

go 1.26.7
