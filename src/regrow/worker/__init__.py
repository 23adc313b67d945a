"""Inside the training process: Job, Step, data, the driver of one member's Attendance, and its session thread."""
