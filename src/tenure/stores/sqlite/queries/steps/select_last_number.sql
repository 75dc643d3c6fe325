-- The number of the step that was written last; 0 for none.
select ifnull(max(number), 0)
from tenure_steps
