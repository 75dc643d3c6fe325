-- About how many jobs the file has: the range of row ids, of which retention removes the oldest.
select coalesce(max(rowid) - min(rowid) + 1, 0)
from tenure_jobs
