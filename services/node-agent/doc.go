package nodeagent
