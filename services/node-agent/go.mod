module github.com/weft-fabric/weft/services/node-agent

go 1.26.7
