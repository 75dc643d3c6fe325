-- The steps with these numbers, in the order of completion.
select
    -- each step column: step.{}
from json_each(:numbers) wanted
cross join tenure_steps step on step.number = wanted.value
order by step.number
