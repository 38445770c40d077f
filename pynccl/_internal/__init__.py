"""What pynccl is made of and nobody else imports: their names and arguments may change."""

__all__: list[str] = []
