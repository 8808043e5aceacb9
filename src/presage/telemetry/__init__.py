"""What is measured: rows of what workers use (`rows`), of process trees and GPUs (`processes`,
`nvml`), series that are read from files and from Prometheus, and the profiler of commands. The one
place below `control` that reads a clock."""
