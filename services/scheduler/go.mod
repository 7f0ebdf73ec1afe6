module github.com/weft-fabric/weft/services/scheduler

go 1.26.7
