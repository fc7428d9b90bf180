"""A chat model for LangChain: `pip install "anaphora[langchain]"`.

    from anaphora.integrations.langchain import ChatAnaphora

    model = ChatAnaphora(model="claude-sonnet-4-5")
    answer = model.invoke(messages)
    answer.response_metadata["verdict"]

LangChain sends the whole history with each call. Conversations are recognised by their prompts, so
one model object serves any number of them, from any thread and event loop. A reply that LangChain's
fields cannot hold exactly is kept beside them, so that it is sent back byte by byte. Concurrent
calls that begin the same (`batch`, `abatch`, several `ainvoke`) write that beginning once.
"""

from .model import ChatAnaphora

__all__ = ["ChatAnaphora"]
