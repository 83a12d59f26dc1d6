"""``python -m benchmarks``: every benchmark, one after the other."""

from benchmarks import (
    arrange,
    bags,
    captured,
    extraction,
    forward,
    heatmap,
    length,
    length_page,
    readers,
    runtime,
    scale,
    startup,
    steps,
    streaming,
    survival_intervals,
    tasks,
    training,
    viewer,
    viewer_list,
    viewer_unread,
    zoo,
)

startup.main([])
arrange.main([])
bags.main([])
forward.main([])
length.main([])
length_page.main([])
captured.main([])
zoo.main(["--instances", "1000", "10000"])
readers.main([])
extraction.main(["--side", "8192"])
training.main([])
streaming.main([])
steps.main(["--lengths", "500", "1500"])
tasks.main(["--instances", "1000"])
survival_intervals.main([])
runtime.main([])
heatmap.main([])
scale.main(["--slides", "2000"])
viewer.main([])
viewer_list.main([])
viewer_unread.main([])
