-- Sets the component that writes. It is null again before the commit.
update tenure_writer
set writer = :writer
