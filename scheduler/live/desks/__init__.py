"""What people, agents and jobs bring to the server, checked and made steps of the loop; and what they are told."""
